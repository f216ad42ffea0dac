package sidekeeper.interop;

import org.apache.shardingsphere.elasticjob.infra.listener.ShardingContexts;
import org.apache.shardingsphere.elasticjob.lite.api.listener.AbstractDistributeOnceElasticJobListener;

/** Tells when the first item of a fire begins and the last one has ended, once for the job; job listener type ONCE. */
public final class OnceListener extends AbstractDistributeOnceElasticJobListener {

    private static final long TIMEOUT_MILLIS = 10_000;

    public OnceListener() {
        super(TIMEOUT_MILLIS, TIMEOUT_MILLIS);
    }

    @Override
    public void doBeforeJobExecutedAtLastStarted(ShardingContexts contexts) {
        Events.tell("once_before", "items", contexts.getShardingItemParameters().keySet());
    }

    @Override
    public void doAfterJobExecutedAtLastCompleted(ShardingContexts contexts) {
        Events.tell("once_after", "items", contexts.getShardingItemParameters().keySet());
    }

    @Override
    public String getType() {
        return "ONCE";
    }
}
