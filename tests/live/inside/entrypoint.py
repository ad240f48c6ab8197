"""The entrypoint of Spark's image itself, on the Java that this machine's drivers find."""

import os
import sys

from deploy.docker.entrypoint import main
from trimtab.embedded import ensure_java

os.environ["JAVA_HOME"] = ensure_java()
sys.exit(main())
