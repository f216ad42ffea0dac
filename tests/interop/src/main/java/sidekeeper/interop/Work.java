package sidekeeper.interop;

import java.util.Collection;
import java.util.HashSet;
import java.util.Set;

/** What the job does with an item: as long, and with the end, that the test has asked for. */
final class Work {

    private static final Set<Integer> HELD = new HashSet<>();
    private static final Set<Integer> FAILING = new HashSet<>();
    private static boolean holdingAll;
    private static long durationMillis;

    private Work() {}

    /** Executes an item. */
    static void execute(int item, String parameter, String jobParameter, int total, String taskId) {
        Object[] fields = {"item", item, "parameter", parameter, "job_parameter", jobParameter, "total", total,
            "task_id", taskId};
        Events.tell("start", fields);
        try {
            await(item);
        } catch (InterruptedException interrupted) {
            Events.tell("interrupted", fields);
            throw new IllegalStateException("interrupted");
        }
        if (fails(item)) {
            Events.tell("failed", fields);
            throw new IllegalStateException("told to fail");
        }
        Events.tell("end", fields);
    }

    private static void await(int item) throws InterruptedException {
        long duration;
        synchronized (HELD) {
            duration = durationMillis;
            while (holdingAll || HELD.contains(item)) {
                HELD.wait();
            }
        }
        if (duration > 0) {
            Thread.sleep(duration);
        }
    }

    private static boolean fails(int item) {
        synchronized (HELD) {
            return FAILING.contains(item);
        }
    }

    /** Executions of these items, or of all if there are none, do not end until they are released. */
    static void hold(Collection<Integer> items) {
        synchronized (HELD) {
            HELD.addAll(items);
            holdingAll |= items.isEmpty();
        }
    }

    /** Lets these items, or all if there are none, go on. */
    static void release(Collection<Integer> items) {
        synchronized (HELD) {
            HELD.removeAll(items);
            if (items.isEmpty()) {
                HELD.clear();
                holdingAll = false;
            }
            HELD.notifyAll();
        }
    }

    /** From now on these items fail, and no others. */
    static void fail(Collection<Integer> items) {
        synchronized (HELD) {
            FAILING.clear();
            FAILING.addAll(items);
        }
    }

    /** How long executions that start from now on take. */
    static void duration(long millis) {
        synchronized (HELD) {
            durationMillis = millis;
        }
    }
}
