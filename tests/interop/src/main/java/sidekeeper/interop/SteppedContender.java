package sidekeeper.interop;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;

/**
 * A contender for Curator's locks that acquires and releases when it is told to. It has a session and a thread of its own:
 * for Curator the holder is a thread. It may acquire READ while it holds WRITE.
 */
final class SteppedContender {

    private final String who;
    private final String path;
    private final CuratorFramework client;
    private final Map<String, InterProcessMutex> locks;
    private final Map<String, Held> held = new HashMap<>();
    private final ExecutorService thread = Executors.newSingleThreadExecutor();

    SteppedContender(String address, String path, String who) {
        this.who = who;
        this.path = path;
        client = LockPeer.connect(address);
        InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
        locks = Map.of("MUTEX", new InterProcessMutex(client, path), "READ", both.readLock(), "WRITE", both.writeLock());
    }

    /** Begins a step, "acquire" or "release", when those before are done. Tells "acquired"; after a release the whole grant. */
    void step(String what, String mode) {
        thread.execute(() -> {
            try {
                switch (what) {
                    case "acquire" -> acquire(mode);
                    case "release" -> release(mode);
                    default -> throw new IllegalArgumentException(what);
                }
            } catch (Exception failed) {
                failed.printStackTrace();
                Events.tell("failed", "error", String.valueOf(failed), "who", who);
            }
        });
    }

    private void acquire(String mode) throws Exception {
        if (!locks.get(mode).acquire(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the lock was not free within a minute");
        }
        long begin = System.nanoTime();
        held.put(mode, new Held(begin, LockPeer.ownNode(client, path, mode)));
        Events.tell("acquired", "token", held.get(mode).token(), "mode", mode, "who", who);
    }

    private void release(String mode) throws Exception {
        Held grant = held.remove(mode);
        long end = System.nanoTime();
        locks.get(mode).release();
        Events.tell("grant", "begin", grant.begin(), "end", end, "token", grant.token(), "mode", mode, "who", who);
    }

    private record Held(long begin, long token) {}
}
