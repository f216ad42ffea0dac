package sidekeeper.interop;

import org.apache.shardingsphere.elasticjob.spi.listener.ElasticJobListener;
import org.apache.shardingsphere.elasticjob.spi.listener.param.ShardingContexts;

/** Tells when an instance begins and ends a fire; job listener type EACH. */
public final class EachListener implements ElasticJobListener {

    @Override
    public void beforeJobExecuted(ShardingContexts contexts) {
        Events.tell("before", "items", contexts.getShardingItemParameters().keySet());
    }

    @Override
    public void afterJobExecuted(ShardingContexts contexts) {
        Events.tell("after", "items", contexts.getShardingItemParameters().keySet());
    }

    @Override
    public String getType() {
        return "EACH";
    }
}
