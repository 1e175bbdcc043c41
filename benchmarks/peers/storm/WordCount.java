import java.io.FileWriter;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import net.minidev.json.JSONValue;
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
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.BoltDeclarer;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;
import org.apache.storm.utils.TupleUtils;

/**
 * Storm's side of the comparison: the word count of benchmarks/wordcount.py with acking, and the paced chain of benchmarks/latency.py.
 *
 * <p>Arguments: words|id|yahoo|q0|q1|q2|chain|latency, local|remote, workers, folder, phases (seconds for latency), tasks of each component, and for a
 * chain the texts of a phase, bytes of each and hops; then tuned|shipped and rich|basic. For words, id, yahoo and Nexmark's q0 to q2 the folder holds
 * texts (0.txt, 1.txt, ...; bids are parsed before the first phase), for yahoo also ads.csv; what was measured and counted is written there. "shipped" leaves Storm's
 * settings as they are but for workers, ackers and the limit of open trees; "basic" runs the bolts as BaseBasicBolts. A phase emits all texts and ends when every tuple is acked; all spout tasks begin a phase together.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] args) throws Exception {
        int workers = Integer.parseInt(args[2]);
        String folder = args[3];
        int amount = Integer.parseInt(args[4]);
        int tasks = Integer.parseInt(args[5]), count = Integer.parseInt(args[6]), size = Integer.parseInt(args[7]), hops = Integer.parseInt(args[8]);
        boolean isTuned = args[9].equals("tuned"), isBasic = args[10].equals("basic");
        StormTopology topology =
                switch (args[0]) {
                    case "words" -> wordCount(folder, amount, tasks, isBasic);
                    case "id" -> through(folder, amount, tasks, isBasic);
                    case "yahoo" -> yahoo(folder, amount, tasks, isBasic);
                    case "q0", "q1", "q2" -> nexmark(args[0], folder, amount, tasks, isBasic);
                    case "chain" -> chain(folder, amount, tasks, count, size, hops);
                    default -> pacedChain(folder, amount, tasks);
                };
        Config conf = new Config();
        conf.setNumWorkers(workers);
        conf.setNumAckers(workers);
        conf.setMaxSpoutPending(2000);
        conf.setMessageTimeoutSecs(120);
        if (isTuned) {
            conf.put(Config.TOPOLOGY_WORKER_CHILDOPTS, "-Xmx1800m -XX:+UseParallelGC");
        }
        if (args[1].equals("remote")) {
            if (isTuned) {
                conf.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, 1);
            }
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

    private static StormTopology wordCount(String folder, int phases, int tasks, boolean isBasic) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new Lines(folder, phases, 0, 0, false), tasks);
        bolt(builder, "split", new Split(), tasks, isBasic).localOrShuffleGrouping("lines");
        bolt(builder, "count", new Count(folder), tasks, isBasic).fieldsGrouping("split", new Fields("word"));
        return builder.createTopology();
    }

    /** storm-perf's ConstSpoutIdBoltNullBolt over the lines of the texts. */
    private static StormTopology through(String folder, int phases, int tasks, boolean isBasic) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new Lines(folder, phases, 0, 0, false), tasks);
        bolt(builder, "id", new Pass(), tasks, isBasic).localOrShuffleGrouping("lines");
        bolt(builder, "null", new Dropped(folder), tasks, isBasic).localOrShuffleGrouping("id");
        return builder.createTopology();
    }

    /** The Yahoo benchmark over the lines of the texts, with the hops of benchmarks/field/yahoo.py. */
    private static StormTopology yahoo(String folder, int phases, int tasks, boolean isBasic) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("ads", new Lines(folder, phases, 0, 0, false), tasks);
        bolt(builder, "deserialize", new Deserialize(), tasks, isBasic).localOrShuffleGrouping("ads");
        bolt(builder, "filter", new Views(), tasks, isBasic).localOrShuffleGrouping("deserialize");
        bolt(builder, "projection", new Projection(), tasks, isBasic).localOrShuffleGrouping("filter");
        bolt(builder, "join", new JoinCampaign(folder), tasks, isBasic).localOrShuffleGrouping("projection");
        bolt(builder, "count", new CountWindows(folder), tasks, isBasic).fieldsGrouping("join", new Fields("campaign"));
        return builder.createTopology();
    }

    /** Nexmark's queries of single bids, as benchmarks/field/nexmark.py has them. */
    private static StormTopology nexmark(String query, String folder, int phases, int tasks, boolean isBasic) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("bids", new Lines(folder, phases, 0, 0, true), tasks);
        Step step =
                switch (query) {
                    case "q0" -> new PassBid();
                    case "q1" -> new Currency();
                    default -> new Selection();
                };
        bolt(builder, "query", step, tasks, isBasic).localOrShuffleGrouping("bids");
        if (query.equals("q2")) {
            // one task, as the answer of many rows has beside it
            bolt(builder, "result", new CountRows(folder), 1, isBasic).globalGrouping("query");
        } else {
            bolt(builder, "result", new Sums(folder), tasks, isBasic).localOrShuffleGrouping("query");
        }
        return builder.createTopology();
    }

    private static BoltDeclarer bolt(TopologyBuilder builder, String name, Step step, int tasks, boolean isBasic) {
        return isBasic ? builder.setBolt(name, new BasicForm(step), tasks) : builder.setBolt(name, new RichForm(step), tasks);
    }

    private static StormTopology chain(String folder, int phases, int tasks, int count, int size, int hops) {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("hop0", new Lines(folder, phases, count, size, false), tasks);
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

    static final String[] BID = {"auction", "bidder", "price", "channel", "url", "time", "extra"};
    static final String[] SHORT_BID = {"auction", "bidder", "price", "time", "extra"};

    /** Emits its share of the lines of the texts, or of generated texts, once per phase. */
    public static final class Lines extends BaseRichSpout {
        private final String folder;
        private final int phases, count, size;
        private final boolean areBids;
        private transient SpoutOutputCollector collector;
        private transient List<Values> rows;
        private int index, tasks, phase, at, open, ready;
        private boolean running;
        private long begunMs;

        Lines(String folder, int phases, int count, int size, boolean areBids) {
            this.folder = folder;
            this.phases = phases;
            this.count = count;
            this.size = size;
            this.areBids = areBids;
        }

        private Values row(String line) {
            if (!areBids) {
                return new Values(line);
            }
            String[] parts = line.split(",");
            return new Values(
                    Long.parseLong(parts[0]), Long.parseLong(parts[1]), Long.parseLong(parts[2]), parts[3], parts[4],
                    Long.parseLong(parts[5]), parts[6]);
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
            index = context.getThisTaskIndex();
            tasks = context.getComponentTasks(context.getThisComponentId()).size();
            rows = new ArrayList<>(Collections.nCopies((count + tasks - 1 - index) / tasks, new Values("x".repeat(size))));
            try {
                for (int i = index; Files.exists(Path.of(folder, i + ".txt")); i += tasks) {
                    for (String line : Files.readAllLines(Path.of(folder, i + ".txt"))) {
                        rows.add(row(line));
                    }
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
            if (at < rows.size()) {
                open++;
                collector.emit(rows.get(at), at++);
            } else {
                LockSupport.parkNanos(100_000);
            }
        }

        @Override
        public void ack(Object id) {
            open--;
            if (at == rows.size() && open == 0) {
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
            declarer.declare(new Fields(areBids ? BID : new String[] {"line"}));
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

    /** What a bolt does with a tuple, in whichever form it runs. */
    abstract static class Step implements Serializable {
        abstract void run(Tuple tuple, Consumer<Values> out);

        String[] fields() {
            return new String[] {"word"};
        }

        void start(int task) {}

        /** Called once a second, for what has been counted to be written. */
        void tick() {}

        boolean ticks() {
            return false;
        }
    }

    /** A step that counts by key; the counts are written once a second when they have changed. */
    abstract static class Counting extends Step {
        private final String folder;
        private static final long FULL = 1_000_000_000_000_000_000L;
        private final HashMap<String, Long> counts = new HashMap<>();
        private final HashMap<String, BigInteger> full = new HashMap<>();
        private int task;
        private boolean isChanged;

        Counting(String folder) {
            this.folder = folder;
        }

        void add(String key) {
            add(key, 1L);
        }

        /** Adds less than FULL; sums of many rows do not fit into a long. */
        void add(String key, long amount) {
            if (counts.merge(key, amount, Long::sum) >= FULL) {
                full.merge(key, BigInteger.valueOf(counts.put(key, 0L)), BigInteger::add);
            }
            isChanged = true;
        }

        @Override
        void start(int task) {
            this.task = task;
        }

        @Override
        boolean ticks() {
            return true;
        }

        @Override
        void tick() {
            if (isChanged) {
                isChanged = false;
                StringBuilder text = new StringBuilder();
                counts.forEach((key, count) -> {
                    BigInteger whole = full.getOrDefault(key, BigInteger.ZERO).add(BigInteger.valueOf(count));
                    text.append(key).append('\t').append(whole).append('\n');
                });
                try {
                    Path whole = Path.of(folder, "counts-" + task + ".new");
                    Files.writeString(whole, text);
                    Files.move(whole, Path.of(folder, "counts-" + task + ".tsv"), StandardCopyOption.ATOMIC_MOVE);
                } catch (IOException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
    }

    /** A step as a BaseRichBolt, with acks by hand. */
    public static final class RichForm extends BaseRichBolt {
        private final Step step;
        private transient OutputCollector collector;

        RichForm(Step step) {
            this.step = step;
        }

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
            step.start(context.getThisTaskId());
        }

        @Override
        public void execute(Tuple tuple) {
            if (step.ticks() && TupleUtils.isTick(tuple)) {
                step.tick();
            } else {
                step.run(tuple, values -> collector.emit(tuple, values));
            }
            collector.ack(tuple);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields(step.fields()));
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return step.ticks() ? Map.of(Config.TOPOLOGY_TICK_TUPLE_FREQ_SECS, 1) : null;
        }
    }

    /** A step as a BaseBasicBolt. */
    public static final class BasicForm extends BaseBasicBolt {
        private final Step step;

        BasicForm(Step step) {
            this.step = step;
        }

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context) {
            step.start(context.getThisTaskId());
        }

        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            if (step.ticks() && TupleUtils.isTick(tuple)) {
                step.tick();
            } else {
                step.run(tuple, collector::emit);
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields(step.fields()));
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return step.ticks() ? Map.of(Config.TOPOLOGY_TICK_TUPLE_FREQ_SECS, 1) : null;
        }
    }

    /** One line in, its words out. */
    static final class Split extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            for (String word : tuple.getString(0).split(" ")) {
                out.accept(new Values(word));
            }
        }
    }

    /** Running count per word. */
    static final class Count extends Counting {
        Count(String folder) {
            super(folder);
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            add(tuple.getString(0));
        }
    }

    /** Passes a text on. */
    static final class Pass extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            out.accept(new Values(tuple.getValue(0)));
        }
    }

    /** Counts what it drops. */
    static final class Dropped extends Counting {
        Dropped(String folder) {
            super(folder);
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            add("tuples");
        }
    }

    /** Parses an event. */
    static final class Deserialize extends Step {
        private static final String[] FIELDS = {
            "user_id", "page_id", "ad_id", "ad_type", "event_type", "event_time", "ip_address"
        };

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            Map<?, ?> event = (Map<?, ?>) JSONValue.parse(tuple.getString(0));
            Values values = new Values();
            for (String field : FIELDS) {
                values.add(event.get(field));
            }
            out.accept(values);
        }

        @Override
        String[] fields() {
            return FIELDS;
        }
    }

    /** Keeps views. */
    static final class Views extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            if (tuple.getString(4).equals("view")) {
                Values values = new Values();
                values.addAll(tuple.getValues());
                out.accept(values);
            }
        }

        @Override
        String[] fields() {
            return Deserialize.FIELDS;
        }
    }

    /** Keeps the ad and the time. */
    static final class Projection extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            out.accept(new Values(tuple.getString(2), Long.parseLong(tuple.getString(5))));
        }

        @Override
        String[] fields() {
            return new String[] {"ad_id", "time"};
        }
    }

    /** The campaign of an ad. */
    static final class JoinCampaign extends Step {
        private final String folder;
        private final HashMap<String, String> campaigns = new HashMap<>();

        JoinCampaign(String folder) {
            this.folder = folder;
        }

        @Override
        void start(int task) {
            try {
                for (String line : Files.readAllLines(Path.of(folder, "ads.csv"))) {
                    String[] pair = line.split(",");
                    campaigns.put(pair[0], pair[1]);
                }
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            out.accept(new Values(campaigns.get(tuple.getString(0)), tuple.getLong(1)));
        }

        @Override
        String[] fields() {
            return new String[] {"campaign", "time"};
        }
    }

    /** Views per campaign and ten seconds, as the original counts them. */
    static final class CountWindows extends Counting {
        CountWindows(String folder) {
            super(folder);
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            add(tuple.getString(0) + " " + tuple.getLong(1) / 10_000);
        }
    }

    /** q0: a bid without its channel. */
    static final class PassBid extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            out.accept(new Values(tuple.getValue(0), tuple.getValue(1), tuple.getValue(2), tuple.getValue(5), tuple.getValue(6)));
        }

        @Override
        String[] fields() {
            return SHORT_BID;
        }
    }

    /** q1: the price in another currency. */
    static final class Currency extends Step {
        private static final BigDecimal RATE = new BigDecimal("0.908");

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            BigDecimal price = BigDecimal.valueOf(tuple.getLong(2)).multiply(RATE);
            out.accept(new Values(tuple.getValue(0), tuple.getValue(1), price, tuple.getValue(5), tuple.getValue(6)));
        }

        @Override
        String[] fields() {
            return SHORT_BID;
        }
    }

    /** q2: bids on some auctions. */
    static final class Selection extends Step {
        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            if (tuple.getLong(0) % 123 == 0) {
                out.accept(new Values(tuple.getValue(0), tuple.getValue(2)));
            }
        }

        @Override
        String[] fields() {
            return new String[] {"auction", "price"};
        }
    }

    /** Counts rows by their fields. */
    static final class CountRows extends Counting {
        CountRows(String folder) {
            super(folder);
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            add(tuple.getLong(0) + " " + tuple.getLong(1));
        }
    }

    /** The number of rows and the sum of what benchmarks/field/case.py's `mixed` gives. */
    static final class Sums extends Counting {
        Sums(String folder) {
            super(folder);
        }

        @Override
        void run(Tuple tuple, Consumer<Values> out) {
            long others = tuple.getLong(0) + 3 * tuple.getLong(1) + 11 * tuple.getLong(3) + 13L * tuple.getString(4).length();
            long mixed =
                    tuple.getValue(2) instanceof BigDecimal price
                            ? 1000 * others + 7 * price.unscaledValue().longValue()
                            : others + 7 * tuple.getLong(2);
            add("rows");
            add("sum", mixed);
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
