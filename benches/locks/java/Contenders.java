import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Contenders hold and release Curator's mutex, and tell how long it took: a program of the measurement in
 * benches/sidecar/locks.rs, which has the protocol of the commands. Argument: ZooKeeper's address.
 */
public final class Contenders {

    /** That of a sidecar. */
    private static final int SESSION_TIMEOUT = 30_000;

    private static final int CONNECTION_TIMEOUT = 10_000;

    private final List<CuratorFramework> sessions = new ArrayList<>();

    private Contenders(String address) throws InterruptedException {
        for (int i = 0; i < 2; i++) {
            CuratorFramework session = CuratorFrameworkFactory.newClient(
                    address, SESSION_TIMEOUT, CONNECTION_TIMEOUT, new ExponentialBackoffRetry(100, 3));
            session.start();
            session.blockUntilConnected();
            sessions.add(session);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Contenders contenders = new Contenders(arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            String[] words = command.split(" ");
            switch (words[0]) {
                case "pairs" -> contenders.pairs(Integer.parseInt(words[1]));
                case "queue" -> contenders.queue(
                        Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                default -> throw new IllegalArgumentException("unknown command: " + command);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private InterProcessMutex contender(String lock, int session) {
        return new InterProcessMutex(sessions.get(session), "/bench-locks/curator-" + lock);
    }

    /** Holds and releases a lock that nobody else wants, again and again. */
    private void pairs(int count) throws Exception {
        InterProcessMutex lock = contender("pairs", 0);
        List<Long> acquired = new ArrayList<>();
        List<Long> released = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            long start = System.nanoTime();
            lock.acquire();
            long held = System.nanoTime();
            lock.release();
            released.add(System.nanoTime() - held);
            acquired.add(held - start);
        }
        tell("acquired", acquired);
        tell("released", released);
    }

    /** Has so many contenders hold one lock, each again and again without a pause, until it was granted so often. */
    private void queue(int contenders, int sessions, int grants) throws Exception {
        AtomicInteger granted = new AtomicInteger();
        AtomicReference<Exception> failed = new AtomicReference<>();
        List<Long> journal = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < contenders; i++) {
            InterProcessMutex lock = contender("queue", i % sessions);
            Thread thread = new Thread(() -> {
                try {
                    while (granted.get() < grants && failed.get() == null) {
                        lock.acquire();
                        long now = System.nanoTime();
                        granted.incrementAndGet();
                        lock.release();
                        journal.add(now);
                    }
                } catch (Exception e) {
                    failed.set(e);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        List<Long> times = new ArrayList<>();
        for (long now : journal) {
            Collections.addAll(times, now, now);
        }
        tell("grants", times);
    }

    /** Prints a name and times in nanoseconds. */
    private static void tell(String name, List<Long> times) {
        StringBuilder line = new StringBuilder(name);
        times.forEach(time -> line.append(' ').append(time));
        System.out.println(line);
    }
}
