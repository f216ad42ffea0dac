package sidekeeper.interop;

import com.google.gson.JsonElement;
import java.lang.reflect.Field;
import org.apache.shardingsphere.elasticjob.api.JobConfiguration;
import org.apache.shardingsphere.elasticjob.infra.env.IpUtils;
import org.apache.shardingsphere.elasticjob.infra.pojo.JobConfigurationPOJO;
import org.apache.shardingsphere.elasticjob.lite.api.bootstrap.impl.OneOffJobBootstrap;
import org.apache.shardingsphere.elasticjob.lite.api.bootstrap.impl.ScheduleJobBootstrap;
import org.apache.shardingsphere.elasticjob.lite.internal.snapshot.SnapshotService;
import org.apache.shardingsphere.elasticjob.reg.base.CoordinatorRegistryCenter;

/** What differs between versions of ElasticJob: where its classes are. */
final class Kernel {

    /** The package of the lifecycle API. */
    static final String LIFECYCLE = "org.apache.shardingsphere.elasticjob.lite.lifecycle";

    private final Runnable trigger;
    private final Runnable shutdown;

    private Kernel(Runnable trigger, Runnable shutdown) {
        this.trigger = trigger;
        this.shutdown = shutdown;
    }

    /** Has ElasticJob take this for the machine's address, so that each instance is a server of its own. */
    static void useAddress(String ip) throws ReflectiveOperationException {
        Field address = IpUtils.class.getDeclaredField("cachedIpAddress");
        address.setAccessible(true);
        address.set(null, ip);
    }

    static JobConfiguration configuration(JsonElement json) {
        return Events.GSON.fromJson(json, JobConfigurationPOJO.class).toJobConfiguration();
    }

    /** Registers the instance, and starts its schedule if it has one. */
    static Kernel start(CoordinatorRegistryCenter registry, JobConfiguration job) {
        if (job.getCron() == null) {
            OneOffJobBootstrap bootstrap = new OneOffJobBootstrap(registry, new OrderJob(), job);
            return new Kernel(bootstrap::execute, bootstrap::shutdown);
        }
        ScheduleJobBootstrap bootstrap = new ScheduleJobBootstrap(registry, new OrderJob(), job);
        bootstrap.schedule();
        return new Kernel(() -> {
            throw new IllegalStateException("only a one-off job can be triggered from here");
        }, bootstrap::shutdown);
    }

    /** Answers the dump command. */
    static void answerDumps(CoordinatorRegistryCenter registry, int port) {
        new SnapshotService(registry, port).listen();
    }

    void trigger() {
        trigger.run();
    }

    void shutdown() {
        shutdown.run();
    }
}
