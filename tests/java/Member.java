import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;
import kafka.consumer.Blacklist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * Old consumers under command: one process, any number of connectors of one group.
 *
 * Standard output carries one JSON object a line for everything that happens; standard input takes commands: start [consumer.id],
 * shutdown [member], commit [member], pause, resume, exit. The end of standard input is a hard death: nothing is left in order.
 *
 * The source must compile against every release from 0.8.2.2 to 1.1.1, so the listener goes through reflection.
 */
public final class Member {
    private final Properties properties = new Properties();
    private final Map<String, Integer> topics = new TreeMap<>();
    private final List<ConsumerConnector> connectors = new ArrayList<>();
    private final List<ReentrantReadWriteLock> taking = new CopyOnWriteArrayList<>();
    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong bytes = new AtomicLong();
    private TopicFilter filter;
    private int streams = 1;
    private int members = 1;
    private boolean quiet;
    private boolean paused;

    public static void main(String[] args) throws Exception {
        Member self = new Member();
        self.read(args);
        self.run();
    }

    private void read(String[] args) {
        for (int i = 0; i < args.length; i++) {
            switch (args[i]) {
                case "--property": put(args[++i]); break;
                case "--topic": topic(args[++i]); break;
                case "--white-list": filter = new Whitelist(args[++i]); break;
                case "--black-list": filter = new Blacklist(args[++i]); break;
                case "--streams": streams = Integer.parseInt(args[++i]); break;
                case "--members": members = Integer.parseInt(args[++i]); break;
                case "--quiet": quiet = true; break;
                default: throw new IllegalArgumentException("not understood: " + args[i]);
            }
        }
    }

    private void put(String pair) {
        int at = pair.indexOf('=');
        properties.setProperty(pair.substring(0, at), pair.substring(at + 1));
    }

    private void topic(String pair) {
        int at = pair.lastIndexOf('=');
        topics.put(pair.substring(0, at), Integer.valueOf(pair.substring(at + 1)));
    }

    private void run() throws Exception {
        if (quiet) count();
        for (int i = 0; i < members; i++) start(null);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) obey(line.trim().split(" +"));
        Runtime.getRuntime().halt(137);
    }

    private void obey(String[] words) {
        String argument = words.length > 1 ? words[1] : null;
        try {
            switch (words[0]) {
                case "start": start(argument); break;
                case "shutdown": shutdown(argument); break;
                case "commit": commit(argument); break;
                case "pause": setPaused(true); say("{\"event\":\"paused\"}"); break;
                case "resume": setPaused(false); say("{\"event\":\"resumed\"}"); break;
                case "exit": System.out.flush(); Runtime.getRuntime().halt(0); break;
                default: failed(-1, "not understood: " + words[0]);
            }
        } catch (Throwable e) {
            failed(-1, words[0] + ": " + e);
        }
    }

    private void start(String id) {
        int member = connectors.size();
        Properties own = new Properties();
        own.putAll(properties);
        if (id != null) own.setProperty("consumer.id", id);
        try {
            say("{\"event\":\"starting\",\"member\":" + member + "}");
            ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(own));
            connectors.add(connector);
            taking.add(new ReentrantReadWriteLock());
            listen(connector, member);
            read(connector, member);
            say("{\"event\":\"started\",\"member\":" + member + "}");
        } catch (Throwable e) {
            failed(member, "start: " + e);
        }
    }

    private void read(ConsumerConnector connector, int member) {
        if (filter != null) {
            int n = 0;
            for (KafkaStream<byte[], byte[]> stream : connector.createMessageStreamsByFilter(filter, streams)) pump(stream, member, n++);
            return;
        }
        Map<String, List<KafkaStream<byte[], byte[]>>> all = connector.createMessageStreams(topics);
        for (List<KafkaStream<byte[], byte[]>> ofTopic : all.values()) {
            int n = 0;
            for (KafkaStream<byte[], byte[]> stream : ofTopic) pump(stream, member, n++);
        }
    }

    private void pump(final KafkaStream<byte[], byte[]> stream, final int member, final int number) {
        Thread thread = new Thread(() -> {
            try {
                ConsumerIterator<byte[], byte[]> messages = stream.iterator();
                while (messages.hasNext()) {
                    awaitResumed();
                    if (quiet) take(messages.next(), member, number);
                    else takeUnlessLeaving(messages, member, number);
                }
            } catch (Throwable e) {
                failed(member, "stream " + number + ": " + e);
            }
        }, "stream-" + member + "-" + number);
        thread.setDaemon(true);
        thread.start();
    }

    /** Taking a message and telling of it is one step for whoever shuts the connector down. He keeps the lock, and the reader waits for ever. */
    private void takeUnlessLeaving(ConsumerIterator<byte[], byte[]> messages, int member, int number) {
        Lock one = taking.get(member).readLock();
        one.lock();
        try {
            take(messages.next(), member, number);
        } finally {
            one.unlock();
        }
    }

    private void take(MessageAndMetadata<byte[], byte[]> message, int member, int stream) {
        if (quiet) {
            messages.incrementAndGet();
            bytes.addAndGet(message.message() == null ? 0 : message.message().length);
            return;
        }
        say("{\"event\":\"message\",\"member\":" + member + ",\"stream\":" + stream + ",\"topic\":" + quote(message.topic()) + ",\"partition\":"
                + message.partition() + ",\"offset\":" + message.offset() + ",\"key\":" + text(message.key()) + ",\"value\":" + text(message.message()) + "}");
    }

    private void commit(String argument) {
        for (int i : chosen(argument)) {
            connectors.get(i).commitOffsets();
            say("{\"event\":\"committed\",\"member\":" + i + "}");
        }
    }

    /** The readers stop first, as those of an orderly service do: an iterator goes on with the chunk in work after the last commit. */
    private void shutdown(String argument) {
        for (int i : chosen(argument)) {
            taking.get(i).writeLock().lock();
            connectors.get(i).shutdown();
            connectors.set(i, null);
            say("{\"event\":\"shutdown\",\"member\":" + i + "}");
        }
    }

    private List<Integer> chosen(String argument) {
        List<Integer> live = new ArrayList<>();
        for (int i = 0; i < connectors.size(); i++)
            if (connectors.get(i) != null && (argument == null || Integer.parseInt(argument) == i)) live.add(i);
        return live;
    }

    /** The listener came in two steps: before releasing with 0.8.2, before starting with 0.9. A proxy answers whichever there is. */
    private void listen(ConsumerConnector connector, int member) throws Exception {
        for (Method method : ConsumerConnector.class.getMethods()) {
            if (!method.getName().equals("setConsumerRebalanceListener")) continue;
            Class<?> listener = method.getParameterTypes()[0];
            method.invoke(connector, Proxy.newProxyInstance(listener.getClassLoader(), new Class<?>[] {listener}, (proxy, called, given) -> {
                tell(called.getName(), given, member);
                return null;
            }));
        }
    }

    /** Never throws: what a listener throws, the connector takes for a failed rebalance. */
    private static void tell(String called, Object[] given, int member) {
        try {
            if (called.equals("beforeReleasingPartitions")) rebalance("releasing", member, (Map<?, ?>) given[0]);
            if (called.equals("beforeStartingFetchers")) rebalance("fetching", member, mine((String) given[0], (Map<?, ?>) given[1]));
        } catch (Throwable e) {
            failed(member, called + ": " + e);
        }
    }

    /** Of a whole assignment, topic to partition to stream id, the partitions of one consumer. */
    private static Map<String, Object> mine(String consumer, Map<?, ?> assignment) {
        Map<String, Object> mine = new TreeMap<>();
        for (Map.Entry<?, ?> topic : assignment.entrySet()) {
            List<Object> partitions = new ArrayList<>();
            for (Map.Entry<?, ?> partition : ((Map<?, ?>) topic.getValue()).entrySet())
                if (String.valueOf(partition.getValue()).startsWith(consumer + "-")) partitions.add(partition.getKey());
            mine.put((String) topic.getKey(), partitions);
        }
        return mine;
    }

    private static void rebalance(String what, int member, Map<?, ?> partitions) {
        StringBuilder json = new StringBuilder("{\"event\":\"" + what + "\",\"member\":" + member + ",\"partitions\":{");
        String comma = "";
        for (Map.Entry<?, ?> topic : new TreeMap<Object, Object>(partitions).entrySet()) {
            json.append(comma).append(quote((String) topic.getKey())).append(':').append(numbers(topic.getValue()));
            comma = ",";
        }
        say(json.append("}}").toString());
    }

    /** Of a collection of numbers. Some releases hand over a Scala set where they promise a Java one; its text lists them all the same. */
    private static List<Integer> numbers(Object collection) {
        List<Integer> numbers = new ArrayList<>();
        for (String number : collection.toString().split("[^0-9]+")) if (!number.isEmpty()) numbers.add(Integer.valueOf(number));
        numbers.sort(null);
        return numbers;
    }

    private void count() {
        Thread thread = new Thread(() -> {
            while (true) {
                say("{\"event\":\"count\",\"nanos\":" + System.nanoTime() + ",\"messages\":" + messages.get() + ",\"bytes\":" + bytes.get() + "}");
                try {
                    Thread.sleep(100);
                } catch (InterruptedException e) {
                    return;
                }
            }
        }, "count");
        thread.setDaemon(true);
        thread.start();
    }

    private synchronized void setPaused(boolean value) {
        paused = value;
        notifyAll();
    }

    private synchronized void awaitResumed() throws InterruptedException {
        while (paused) wait();
    }

    private static void failed(int member, String why) {
        say("{\"event\":\"failed\",\"member\":" + member + ",\"why\":" + quote(why) + "}");
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : quote(new String(bytes, StandardCharsets.UTF_8));
    }

    static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    private static void say(String line) {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (System.out) {
            System.out.write(bytes, 0, bytes.length);
            System.out.flush();
        }
    }
}
