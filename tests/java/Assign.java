import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

import kafka.common.TopicAndPartition;
import scala.collection.JavaConversions;

/**
 * Asks a release's own assignors what they make of a group that stands in ZooKeeper.
 *
 * A line of standard input is CONNECT STRATEGY GROUP CONSUMER..., with the chroot in CONNECT; the answer is one line of standard output,
 * {"assignment": {topic: {partition: stream id}}} from asking on behalf of every consumer and adding up, or {"error": exception class}.
 *
 * The classes changed between 0.8.2 and 0.9 (how ZooKeeper is reached, and what is answered), so they are called through reflection.
 */
public final class Assign {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String[] words) throws Exception {
        Constructor<?> context = Class.forName("kafka.consumer.AssignmentContext").getConstructors()[0];
        Object zookeeper = open(context.getParameterTypes()[3], words[0]);
        try {
            Map<String, Map<Integer, String>> all = new TreeMap<>();
            for (int i = 3; i < words.length; i++) ask(words[1], context.newInstance(words[2], words[i], true, zookeeper), words[i], all);
            return json(all);
        } catch (InvocationTargetException e) {
            return "{\"error\":" + Member.quote(e.getCause().getClass().getName()) + "}";
        } finally {
            zookeeper.getClass().getMethod("close").invoke(zookeeper);
        }
    }

    private static Object open(Class<?> wanted, String connect) throws Exception {
        if (wanted.getName().equals("kafka.utils.ZkUtils"))
            return wanted.getMethod("apply", String.class, int.class, int.class, boolean.class).invoke(null, connect, 30000, 30000, false);
        Object texts = Class.forName("kafka.utils.ZKStringSerializer$").getField("MODULE$").get(null);
        for (Constructor<?> made : wanted.getConstructors())
            if (made.getParameterCount() == 4 && made.getParameterTypes()[0] == String.class) return made.newInstance(connect, 30000, 30000, texts);
        throw new IllegalStateException("no way to make a " + wanted);
    }

    private static void ask(String strategy, Object context, String consumer, Map<String, Map<Integer, String>> all) throws Exception {
        Object maker = Class.forName("kafka.consumer.PartitionAssignor$").getField("MODULE$").get(null);
        Object assignor = maker.getClass().getMethod("createInstance", String.class).invoke(maker, strategy);
        Method assign = Class.forName("kafka.consumer.PartitionAssignor").getMethod("assign", context.getClass());
        assign.setAccessible(true);
        Object answer = assign.invoke(assignor, context);
        // From 0.9 the answer holds everybody's share, before only that of the one who asks.
        if (answer instanceof kafka.utils.Pool) answer = ((kafka.utils.Pool<?, ?>) (Object) answer).getClass().getMethod("get", Object.class).invoke(answer, consumer);
        if (answer == null) return;
        for (Map.Entry<?, ?> one : JavaConversions.mapAsJavaMap((scala.collection.Map<?, ?>) answer).entrySet()) {
            TopicAndPartition place = (TopicAndPartition) one.getKey();
            String before = all.computeIfAbsent(place.topic(), topic -> new TreeMap<>()).put(place.partition(), one.getValue().toString());
            if (before != null) throw new IllegalStateException(place + " was given twice");
        }
    }

    private static String json(Map<String, Map<Integer, String>> all) {
        StringBuilder json = new StringBuilder("{\"assignment\":{");
        String comma = "";
        for (Map.Entry<String, Map<Integer, String>> topic : all.entrySet()) {
            json.append(comma).append(Member.quote(topic.getKey())).append(":{");
            comma = "";
            for (Map.Entry<Integer, String> one : topic.getValue().entrySet()) {
                json.append(comma).append('"').append(one.getKey()).append("\":").append(Member.quote(one.getValue()));
                comma = ",";
            }
            json.append('}');
            comma = ",";
        }
        return json.append("}}").toString();
    }
}
