package sidekeeper.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;

/**
 * Contenders for Curator's locks, each in a session of its own. Arguments: ZooKeeper's address, the lock's path, rounds, and
 * modes (MUTEX, READ, WRITE, or SEMAPHORE with its permits, as in SEMAPHORE:3), one contender each. Tells each grant: begin and end in nanoseconds of CLOCK_MONOTONIC, the czxid
 * of the contender's node, the mode, and who. A line of standard input asks the holder of the lock to give it back.
 *
 * With "steps" in place of the rounds, each line of standard input moves one contender: "WHO acquire MODE" or "WHO release
 * MODE". A contender comes with its first line.
 */
public final class LockPeer {

    /** What the names of the nodes of each mode have in common. */
    private static final Map<String, String> NAMES =
            Map.of("MUTEX", "lock-", "READ", "__READ__", "WRITE", "__WRIT__", "SEMAPHORE", "lease-");

    private LockPeer() {}

    public static void main(String[] arguments) throws Exception {
        Events.claimStandardOutput();
        String address = arguments[0];
        String path = arguments[1];
        if (arguments[2].equals("steps")) {
            followSteps(address, path);
            Runtime.getRuntime().halt(0);
        }
        int rounds = Integer.parseInt(arguments[2]);
        List<Thread> contenders = new ArrayList<>();
        for (int i = 3; i < arguments.length; i++) {
            String mode = arguments[i];
            String who = "java-" + i;
            Thread contender = new Thread(() -> contend(address, path, rounds, mode, who));
            contender.start();
            contenders.add(contender);
        }
        for (Thread contender : contenders) {
            contender.join();
        }
        Events.tell("done");
        try (CuratorFramework client = connect(address)) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Revoker.attemptRevoke(client, line.strip());
                Events.tell("asked");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void followSteps(String address, String path) throws IOException {
        Map<String, SteppedContender> contenders = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            contenders
                    .computeIfAbsent(words[0], who -> new SteppedContender(address, path, who))
                    .step(words[1], words[2]);
        }
    }

    static CuratorFramework connect(String address) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(address, 10_000, 10_000, new ExponentialBackoffRetry(100, 3));
        client.start();
        return client;
    }

    private static void contend(String address, String path, int rounds, String mode, String who) {
        try (CuratorFramework client = connect(address)) {
            if (mode.startsWith("SEMAPHORE:")) {
                int permits = Integer.parseInt(mode.substring("SEMAPHORE:".length()));
                takePermits(client, path, rounds, permits, who);
                return;
            }
            InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
            InterProcessMutex lock = switch (mode) {
                case "READ" -> both.readLock();
                case "WRITE" -> both.writeLock();
                default -> new InterProcessMutex(client, path);
            };
            for (int round = 0; round < rounds; round++) {
                if (!lock.acquire(60, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("the lock was not free within a minute");
                }
                long begin = System.nanoTime();
                long token = ownNode(client, path, mode);
                Thread.sleep(1);
                long end = System.nanoTime();
                lock.release();
                Events.tell("grant", "begin", begin, "end", end, "token", token, "mode", mode, "who", who);
            }
        } catch (Exception failed) {
            failed.printStackTrace();
            Events.tell("failed", "error", String.valueOf(failed));
        }
    }

    private static void takePermits(CuratorFramework client, String path, int rounds, int permits, String who)
            throws Exception {
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, permits);
        for (int round = 0; round < rounds; round++) {
            Lease lease = semaphore.acquire(60, TimeUnit.SECONDS);
            if (lease == null) {
                throw new IllegalStateException("no permit was free within a minute");
            }
            long begin = System.nanoTime();
            long token = ownNode(client, path + "/leases", "SEMAPHORE");
            // Longer than a grant takes: otherwise never more than one would hold.
            Thread.sleep(20);
            long end = System.nanoTime();
            lease.close();
            Events.tell("grant", "begin", begin, "end", end, "token", token, "mode", "SEMAPHORE", "who", who);
        }
    }

    /** The transaction that created the node of this session with this mode. */
    static long ownNode(CuratorFramework client, String path, String mode) throws Exception {
        String kind = NAMES.get(mode);
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        for (String name : client.getChildren().forPath(path)) {
            Stat stat = name.contains(kind) ? client.checkExists().forPath(path + "/" + name) : null;
            if (stat != null && stat.getEphemeralOwner() == session) {
                return stat.getCzxid();
            }
        }
        throw new IllegalStateException("no node of this session");
    }
}
