package sidekeeper.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * ElasticJob's lifecycle API, as its console calls it. A line of standard input is a call: zookeeper, namespace, api (for
 * example JobOperate), call (the method's name), arguments. A line of standard output is what came of it: result or
 * error.
 */
public final class Lifecycle {

    private Lifecycle() {}

    public static void main(String[] arguments) throws Exception {
        Events.claimStandardOutput();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("event", "answer");
            try {
                answer.put("result", call(JsonParser.parseString(line).getAsJsonObject()));
            } catch (InvocationTargetException failed) {
                failed.getCause().printStackTrace();
                answer.put("error", String.valueOf(failed.getCause()));
            }
            Events.tell(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static Object call(JsonObject request) throws Exception {
        Object api = Class.forName(Kernel.LIFECYCLE + ".api.JobAPIFactory")
                .getMethod("create" + request.get("api").getAsString() + "API", String.class, String.class, String.class)
                .invoke(null, request.get("zookeeper").getAsString(), request.get("namespace").getAsString(), null);
        Method method = method(api, request.get("call").getAsString());
        JsonArray given = request.getAsJsonArray("arguments");
        Object[] arguments = new Object[given.size()];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = Events.GSON.fromJson(given.get(i), method.getParameterTypes()[i]);
        }
        return method.invoke(api, arguments);
    }

    private static Method method(Object api, String name) throws ReflectiveOperationException {
        for (Method method : api.getClass().getMethods()) {
            if (method.getName().equals(name)) {
                return method;
            }
        }
        throw new NoSuchMethodException(name);
    }
}
