import java.io.FileWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.StormSubmitter;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.grouping.CustomStreamGrouping;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.generated.GlobalStreamId;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.task.WorkerTopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * Storm's side of the comparison: the word count of benchmarks/wordcount.py with acking, and the paced chain of benchmarks/latency.py.
 *
 * <p>Arguments: words|latency, local|remote, workers, folder, phases (words) or seconds (latency). The folder holds a text per spout
 * task (0.txt, 1.txt); what was measured is written there. A phase emits a whole text and ends when every line is acked; all spout tasks
 * begin a phase together.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] args) throws Exception {
        boolean words = args[0].equals("words");
        int workers = Integer.parseInt(args[2]);
        String folder = args[3];
        int amount = Integer.parseInt(args[4]);
        StormTopology topology = words ? wordCount(folder, amount, workers) : chain(folder, amount, workers);
        Config conf = new Config();
        conf.setNumWorkers(workers);
        conf.setNumAckers(workers);
        conf.setMaxSpoutPending(2000);
        conf.setMessageTimeoutSecs(120);
        conf.put(Config.TOPOLOGY_WORKER_CHILDOPTS, "-Xmx1800m -XX:+UseParallelGC");
        if (args[1].equals("remote")) {
            conf.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, 1);
            StormSubmitter.submitTopology("peer", conf, topology);
            return;
        }
        try (LocalCluster cluster = new LocalCluster(); LocalCluster.LocalTopology running = cluster.submitTopology("peer", conf, topology)) {
            while (!Files.exists(Path.of(folder, "end"))) {
                Thread.sleep(50);
            }
        }
        System.exit(0);
    }

    private static StormTopology wordCount(String folder, int phases, int tasks) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new Lines(folder, phases), tasks);
        builder.setBolt("split", new Split(), tasks).localOrShuffleGrouping("lines");
        builder.setBolt("count", new Count(), tasks).fieldsGrouping("split", new Fields("word"));
        return builder.createTopology();
    }

    private static StormTopology chain(String folder, int seconds, int tasks) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("paced", new Paced(seconds), 1);
        builder.setBolt("relay1", new Relay(), tasks).customGrouping("paced", new OtherWorker());
        builder.setBolt("relay2", new Relay(), tasks).customGrouping("relay1", new OtherWorker());
        builder.setBolt("sink", new Latencies(folder, seconds), tasks).customGrouping("relay2", new OtherWorker());
        return builder.createTopology();
    }

    static void write(String folder, String name, String text) {
        try (FileWriter out = new FileWriter(Path.of(folder, name).toFile(), true)) {
            out.write(text);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static long nowUs() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() * 1_000_000L + now.getNano() / 1000;
    }

    /** Emits the lines of its text once per phase. */
    public static final class Lines extends BaseRichSpout {
        private final String folder;
        private final int phases;
        private transient SpoutOutputCollector collector;
        private transient List<String> lines;
        private int index, tasks, phase, at, open;
        private boolean running;
        private long begunMs;

        Lines(String folder, int phases) {
            this.folder = folder;
            this.phases = phases;
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
            index = context.getThisTaskIndex();
            tasks = context.getComponentTasks(context.getThisComponentId()).size();
            lines = new ArrayList<>();
            try {
                for (int i = index; i < 2; i += tasks) {
                    lines.addAll(Files.readAllLines(Path.of(folder, i + ".txt")));
                }
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            write(folder, "ready-0-" + index, "");
        }

        @Override
        public void nextTuple() {
            if (!running) {
                for (int i = 0; i < tasks; i++) {
                    if (phase == phases || !Files.exists(Path.of(folder, "ready-" + phase + "-" + i))) {
                        LockSupport.parkNanos(1_000_000);
                        return;
                    }
                }
                running = true;
                at = 0;
                begunMs = System.currentTimeMillis();
            }
            if (at < lines.size()) {
                open++;
                collector.emit(new Values(lines.get(at)), at++);
            } else {
                LockSupport.parkNanos(100_000);
            }
        }

        @Override
        public void ack(Object id) {
            open--;
            if (at == lines.size() && open == 0) {
                running = false;
                write(folder, "phases.txt", phase + " " + index + " " + begunMs + " " + System.currentTimeMillis() + "\n");
                phase++;
                write(folder, "ready-" + phase + "-" + index, "");
            }
        }

        @Override
        public void fail(Object id) {
            write(folder, "failed", id + "\n");
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("line"));
        }
    }

    /** A bolt that keeps its collector. */
    abstract static class Kept extends BaseRichBolt {
        protected transient OutputCollector collector;

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    /** One line in, its words out. */
    public static final class Split extends Kept {
        @Override
        public void execute(Tuple tuple) {
            for (String word : tuple.getString(0).split(" ")) {
                collector.emit(tuple, new Values(word));
            }
            collector.ack(tuple);
        }
    }

    /** Running count per word. */
    public static final class Count extends Kept {
        private final HashMap<String, Long> counts = new HashMap<>();

        @Override
        public void execute(Tuple tuple) {
            counts.merge(tuple.getString(0), 1L, Long::sum);
            collector.ack(tuple);
        }
    }

    /** Emits the moment at which each tuple was due, 1,000 a second. */
    public static final class Paced extends BaseRichSpout {
        private final int count;
        private transient SpoutOutputCollector collector;
        private int sent;
        private long startUs;

        Paced(int seconds) {
            count = seconds * 1000;
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void nextTuple() {
            if (startUs == 0) {
                startUs = nowUs();
            }
            boolean did = false;
            while (sent < count && startUs + sent * 1000L <= nowUs()) {
                collector.emit(new Values(startUs + sent * 1000L), sent++);
                did = true;
            }
            if (!did) {
                LockSupport.parkNanos(100_000);
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    /** Passes values on. */
    public static final class Relay extends Kept {
        @Override
        public void execute(Tuple tuple) {
            collector.emit(tuple, new Values(tuple.getValue(0)));
            collector.ack(tuple);
        }
    }

    /** Keeps latencies behind the first second and writes them when the last second begins. */
    public static final class Latencies extends Kept {
        private final String folder;
        private final int seconds;
        private final List<Long> found = new ArrayList<>();
        private long firstUs;

        Latencies(String folder, int seconds) {
            this.folder = folder;
            this.seconds = seconds;
        }

        @Override
        public void execute(Tuple tuple) {
            long dueUs = tuple.getLong(0), tookUs = nowUs() - dueUs;
            firstUs = firstUs == 0 ? dueUs : firstUs;
            if (dueUs - firstUs > 1_000_000L) {
                found.add(tookUs);
            }
            collector.ack(tuple);
            if (dueUs - firstUs > (seconds - 1) * 1_000_000L && !found.isEmpty()) {
                Collections.sort(found);
                StringBuilder text = new StringBuilder();
                found.forEach(each -> text.append(each).append('\n'));
                write(folder, "latencies.txt", text.toString());
                write(folder, "measured", "");
                found.clear();
                firstUs = Long.MAX_VALUE / 2;
            }
        }
    }

    /** The subscriber's task in another worker than the sender's, where there is one. */
    public static final class OtherWorker implements CustomStreamGrouping {
        private transient WorkerTopologyContext context;
        private List<Integer> targets;

        @Override
        public void prepare(WorkerTopologyContext context, GlobalStreamId stream, List<Integer> targets) {
            this.context = context;
            this.targets = targets;
        }

        @Override
        public List<Integer> chooseTasks(int task, List<Object> values) {
            List<Integer> here = context.getThisWorkerTasks();
            for (int target : targets) {
                if (!here.contains(target)) {
                    return List.of(target);
                }
            }
            return List.of(targets.get(0));
        }
    }
}
