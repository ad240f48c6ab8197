"""As the entrypoint of Spark's image: `executor` with its variables becomes Java's command line, all else is run."""

import os
import sys

from trimtab.embedded import ensure_java

if sys.argv[1:] != ["executor"]:
    os.execvp(sys.argv[1], sys.argv[1:])
environ = os.environ
options = [environ[name] for name in sorted(environ) if name.startswith("SPARK_JAVA_OPT_")]
classpath = [environ.get("SPARK_CONF_DIR", ""), f"{environ['SPARK_HOME']}/jars/*"]
arguments = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
java = f"{ensure_java()}/bin/java"
command = [java, *options, f"-Xms{environ['SPARK_EXECUTOR_MEMORY']}", f"-Xmx{environ['SPARK_EXECUTOR_MEMORY']}"]
command += ["-cp", ":".join(part for part in classpath if part)]
command.append("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
for option, variable in arguments.items():
    command += [option, environ[variable]]
os.execv(java, command)
