package sidekeeper.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** Tells what happens on standard output, a JSON object a line. All else that is printed goes to standard error. */
final class Events {

    static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private Events() {}

    /** Keeps standard output for events. */
    static void claimStandardOutput() {
        System.setOut(System.err);
    }

    /** Tells an event; the fields are names and values in turn. */
    static void tell(String event, Object... fields) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("event", event);
        for (int i = 0; i < fields.length; i += 2) {
            told.put((String) fields[i], fields[i + 1]);
        }
        told.put("time", now());
        tell(told);
    }

    static void tell(Map<String, Object> told) {
        String line = GSON.toJson(told);
        synchronized (OUT) {
            OUT.println(line);
        }
    }

    /** Seconds since the epoch. */
    private static double now() {
        return System.currentTimeMillis() / 1000.0;
    }
}
