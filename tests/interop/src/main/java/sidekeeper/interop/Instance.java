package sidekeeper.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.shardingsphere.elasticjob.api.JobConfiguration;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperConfiguration;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperRegistryCenter;

/**
 * One instance of a job, as its argument says, and obeys the lines on standard input.
 *
 * <p>The argument is a JSON object: zookeeper, namespace, session_timeout (milliseconds), digest (user:password, or none),
 * max_sleep (milliseconds between attempts, or none), ip, dump_port (where to answer the dump command), job (ElasticJob's
 * configuration under the keys of its YAML); a job without a cron is a one-off job.
 */
public final class Instance {

    private Instance() {}

    public static void main(String[] arguments) throws Exception {
        Events.claimStandardOutput();
        JsonObject settings = JsonParser.parseString(arguments[0]).getAsJsonObject();
        Kernel.useAddress(settings.get("ip").getAsString());
        ZookeeperConfiguration zookeeper = new ZookeeperConfiguration(
                settings.get("zookeeper").getAsString(), settings.get("namespace").getAsString());
        zookeeper.setSessionTimeoutMilliseconds(settings.get("session_timeout").getAsInt());
        zookeeper.setBaseSleepTimeMilliseconds(100);
        // Also a part of the time that it has for its first connection.
        zookeeper.setMaxSleepTimeMilliseconds(settings.has("max_sleep") ? settings.get("max_sleep").getAsInt() : 500);
        if (settings.has("digest")) {
            zookeeper.setDigest(settings.get("digest").getAsString());
        }
        ZookeeperRegistryCenter registry = new ZookeeperRegistryCenter(zookeeper);
        registry.init();
        Kernel.answerDumps(registry, settings.get("dump_port").getAsInt());
        JobConfiguration job = Kernel.configuration(settings.get("job"));
        Kernel kernel;
        try {
            kernel = Kernel.start(registry, job);
        } catch (RuntimeException refused) {
            Events.tell("refused", "message", String.valueOf(refused.getMessage()));
            Runtime.getRuntime().halt(1);
            return;
        }
        Events.tell("ready", "instance", settings.get("ip").getAsString() + "@-@" + ProcessHandle.current().pid());
        obey(kernel);
    }

    private static void obey(Kernel kernel) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            List<Integer> numbers =
                    Arrays.stream(words).skip(1).map(Integer::valueOf).collect(Collectors.toList());
            switch (words[0]) {
                case "hold" -> Work.hold(numbers);
                case "release" -> Work.release(numbers);
                case "fail" -> Work.fail(numbers);
                case "duration" -> Work.duration(numbers.get(0));
                case "trigger" -> kernel.trigger();
                case "shutdown" -> kernel.shutdown();
                case "quit" -> new Thread(() -> System.exit(0)).start();
                default -> throw new IllegalArgumentException("no such command: " + line);
            }
            Events.tell(words[0]);
        }
        // The test is gone.
        Runtime.getRuntime().halt(1);
    }
}
