import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.TimestampAssigner;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * The benchmark's join in Flink SQL. Reads requests from standard input, one a line, and answers each with a line.
 *
 * <p>A request: form, directory, streams, window in microseconds, parallelism, rows that are not counted, rows in all, and a
 * file for the results or "-" for the blackhole sink; tabs between them. The answer: "done", milliseconds from the moment
 * when the sources had emitted the rows that are not counted to the end of the job, and rows that were counted.
 *
 * <p>The sources read files in order and are held together in event time, so no row is late and state is what the window
 * needs. Rows keep Flink's internal form from the files to the sink, and objects are reused: nothing is converted that Flink
 * would not convert itself.
 */
public final class FlinkJoin {
    private static final AtomicLong EMITTED = new AtomicLong();
    private static volatile long uncounted;
    private static volatile long startedNs;

    public static void main(String[] arguments) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] each = line.split("\t");
            long rows = Long.parseLong(each[6]);
            EMITTED.set(0);
            startedNs = 0;
            uncounted = Long.parseLong(each[5]);
            run(each[0], each[1], each[2], Long.parseLong(each[3]), Integer.parseInt(each[4]), each[7]);
            double ms = (System.nanoTime() - startedNs) / 1e6;
            System.out.println("done\t" + ms + "\t" + (rows - uncounted));
            System.out.flush();
        }
    }

    private static void run(
            String form, String directory, String streams, long windowUs, int parallelism, String output)
            throws Exception {
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", "hashmap");
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("pipeline.watermark-alignment.allow-unaligned-source-splits", "true");
        settings.setString("table.optimizer.multi-join.enabled", String.valueOf(form.equals("multi")));
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, settings);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        for (char stream : streams.toCharArray()) {
            source(environment, tables, String.valueOf(stream), directory, windowUs);
        }
        String query = form.equals("multi") ? regular(streams, windowUs) : interval(streams, windowUs);
        if (output.equals("-")) {
            StringBuilder columns = new StringBuilder();
            for (char stream : streams.toCharArray()) {
                columns.append(columns.length() == 0 ? "" : ", ")
                        .append(stream + "_user BIGINT, " + stream + "_price DOUBLE, " + stream + "_us BIGINT");
            }
            tables.executeSql("CREATE TABLE nowhere (" + columns + ") WITH ('connector' = 'blackhole')");
            tables.executeSql("INSERT INTO nowhere " + query).await();
        } else {
            write(tables, query, output);
        }
    }

    private static void source(
            StreamExecutionEnvironment environment,
            StreamTableEnvironment tables,
            String stream,
            String directory,
            long windowUs) {
        // Times as the files have them, in microseconds: Flink's own event time knows milliseconds only.
        RowType type =
                RowType.of(
                        new LogicalType[] {new BigIntType(), new DoubleType(), new BigIntType()},
                        new String[] {"user", "price", "at"});
        ParquetColumnarRowInputFormat<FileSourceSplit> format =
                new ParquetColumnarRowInputFormat<>(
                        new org.apache.hadoop.conf.Configuration(), type, InternalTypeInfo.of(type), 2048, true, true);
        FileSource<RowData> files =
                FileSource.forBulkFileFormat(format, new Path(directory, stream))
                        .setSplitAssigner(InOrder::new)
                        .build();
        WatermarkStrategy<RowData> watermarks =
                WatermarkStrategy.<RowData>forBoundedOutOfOrderness(Duration.ofSeconds(1))
                        .withTimestampAssigner(context -> new Counting())
                        .withWatermarkAlignment("streams", Duration.ofMillis(windowUs / 2000), Duration.ofMillis(50));
        DataStream<RowData> rows = environment.fromSource(files, watermarks, stream);
        Schema schema =
                Schema.newBuilder()
                        .columnByMetadata("time", "TIMESTAMP_LTZ(3)", "rowtime", true)
                        .watermark("time", "SOURCE_WATERMARK()")
                        .build();
        tables.createTemporaryView(stream, rows, schema);
    }

    /** Chained interval joins. Their bounds are in milliseconds; what counts is compared in microseconds beside them. */
    private static String interval(String streams, long windowUs) {
        Duration wide = Duration.ofMillis(windowUs / 1000 + 1);
        String near =
                String.format(
                        "INTERVAL '%d %02d:%02d:%02d.%03d' DAY TO SECOND(3)",
                        wide.toDays(),
                        wide.toHoursPart(),
                        wide.toMinutesPart(),
                        wide.toSecondsPart(),
                        wide.toMillisPart());
        StringBuilder from = new StringBuilder();
        for (int index = 0; index < streams.length(); index++) {
            char stream = streams.charAt(index);
            char first = streams.charAt(0);
            if (index == 0) {
                from.append(stream);
                continue;
            }
            from.append(" JOIN " + stream + " ON " + first + ".`user` = " + stream + ".`user`");
            from.append(" AND " + stream + ".`time` BETWEEN " + first + ".`time` - " + near);
            from.append(" AND " + first + ".`time` + " + near);
            from.append(conditions(streams, index, windowUs));
        }
        return "SELECT " + columns(streams) + " FROM " + from;
    }

    /** Regular joins, which the multi-way operator can take together. They know no window: state is never dropped. */
    private static String regular(String streams, long windowUs) {
        StringBuilder from = new StringBuilder();
        for (int index = 0; index < streams.length(); index++) {
            char stream = streams.charAt(index);
            from.append(index == 0 ? "" : " JOIN ");
            from.append("(SELECT `user`, price, `at` FROM " + stream + ") AS " + stream);
            if (index > 0) {
                from.append(" ON " + streams.charAt(0) + ".`user` = " + stream + ".`user`");
                from.append(conditions(streams, index, windowUs));
            }
        }
        return "SELECT " + columns(streams) + " FROM " + from;
    }

    private static String conditions(String streams, int index, long windowUs) {
        StringBuilder text = new StringBuilder();
        for (char earlier : streams.substring(0, index).toCharArray()) {
            String difference = earlier + ".`at` - " + streams.charAt(index) + ".`at`";
            text.append(" AND " + difference + " BETWEEN " + -windowUs + " AND " + windowUs);
        }
        return text.toString();
    }

    private static String columns(String streams) {
        StringBuilder text = new StringBuilder();
        for (char stream : streams.toCharArray()) {
            text.append(text.length() == 0 ? "" : ", ");
            text.append(stream + ".`user`, " + stream + ".price, " + stream + ".`at`");
        }
        return text.toString();
    }

    private static void write(StreamTableEnvironment tables, String query, String output) throws Exception {
        try (CloseableIterator<Row> rows = tables.executeSql(query).collect();
                BufferedWriter file = Files.newBufferedWriter(Paths.get(output))) {
            while (rows.hasNext()) {
                Row row = rows.next();
                StringBuilder line = new StringBuilder();
                for (int field = 0; field < row.getArity(); field++) {
                    line.append(field == 0 ? "" : ",").append(row.getField(field));
                }
                file.write(line.append("\n").toString());
            }
        }
    }

    /** Files by name, whoever asks. */
    private static final class InOrder implements FileSplitAssigner {
        private final List<FileSourceSplit> splits;

        InOrder(Collection<FileSourceSplit> splits) {
            this.splits = new ArrayList<>();
            addSplits(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return splits.isEmpty() ? Optional.empty() : Optional.of(splits.remove(0));
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> more) {
            splits.addAll(more);
            splits.sort(Comparator.comparing((FileSourceSplit each) -> each.path().getName())
                    .thenComparing(FileSourceSplit::offset));
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return new ArrayList<>(splits);
        }
    }

    /** Event time of a row, and a clock that starts once enough rows have been emitted, by all sources together. */
    private static final class Counting implements TimestampAssigner<RowData> {
        private static final int STEP = 1024;
        private int rows;

        @Override
        public long extractTimestamp(RowData row, long known) {
            if (++rows == STEP) {
                rows = 0;
                if (EMITTED.addAndGet(STEP) >= uncounted && startedNs == 0) {
                    startedNs = System.nanoTime();
                }
            }
            return Math.floorDiv(row.getLong(2), 1000L);
        }
    }
}
