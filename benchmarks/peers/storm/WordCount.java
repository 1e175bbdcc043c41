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
 * <p>Arguments: words|chain|latency, local|remote, workers, folder, phases (seconds for latency), tasks of each component, and for a
 * chain the texts of a phase, bytes of each and hops. For words the folder holds texts (0.txt, 1.txt, ...); what was measured is
 * written there. A phase emits all texts and ends when every tuple is acked; all spout tasks begin a phase together.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] args) throws Exception {
        int workers = Integer.parseInt(args[2]);
        String folder = args[3];
        int amount = Integer.parseInt(args[4]);
        int tasks = Integer.parseInt(args[5]), count = Integer.parseInt(args[6]), size = Integer.parseInt(args[7]), hops = Integer.parseInt(args[8]);
        StormTopology topology =
                switch (args[0]) {
                    case "words" -> wordCount(folder, amount, tasks);
                    case "chain" -> chain(folder, amount, tasks, count, size, hops);
                    default -> pacedChain(folder, amount, tasks);
                };
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
        builder.setSpout("lines", new Lines(folder, phases, 0, 0), tasks);
        builder.setBolt("split", new Split(), tasks).localOrShuffleGrouping("lines");
        builder.setBolt("count", new Count(), tasks).fieldsGrouping("split", new Fields("word"));
        return builder.createTopology();
    }

    private static StormTopology chain(String folder, int phases, int tasks, int count, int size, int hops) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("hop0", new Lines(folder, phases, count, size), tasks);
        for (int hop = 1; hop < hops; hop++) {
            builder.setBolt("hop" + hop, new Relay(), tasks).shuffleGrouping("hop" + (hop - 1));
        }
        builder.setBolt("sink", new Sink(), tasks).shuffleGrouping("hop" + (hops - 1));
        return builder.createTopology();
    }

    private static StormTopology pacedChain(String folder, int seconds, int tasks) {
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

    /** Emits its share of the lines of the texts, or of generated texts, once per phase. */
    public static final class Lines extends BaseRichSpout {
        private final String folder;
        private final int phases, count, size;
        private transient SpoutOutputCollector collector;
        private transient List<String> lines;
        private int index, tasks, phase, at, open, ready;
        private boolean running;
        private long begunMs;

        Lines(String folder, int phases, int count, int size) {
            this.folder = folder;
            this.phases = phases;
            this.count = count;
            this.size = size;
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
            index = context.getThisTaskIndex();
            tasks = context.getComponentTasks(context.getThisComponentId()).size();
            lines = new ArrayList<>(Collections.nCopies((count + tasks - 1 - index) / tasks, "x".repeat(size)));
            try {
                for (int i = index; Files.exists(Path.of(folder, i + ".txt")); i += tasks) {
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
                while (phase < phases && ready < tasks && Files.exists(Path.of(folder, "ready-" + phase + "-" + ready))) {
                    ready++;
                }
                if (phase == phases || ready < tasks) {
                    LockSupport.parkNanos(5_000_000); // many tasks that look often would take the CPU from those that still work
                    return;
                }
                running = true;
                ready = 0;
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

    /** Counts tuples. */
    public static final class Sink extends Kept {
        private long count;

        @Override
        public void execute(Tuple tuple) {
            count++;
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
