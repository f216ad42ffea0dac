package sidekeeper.interop;

import org.apache.shardingsphere.elasticjob.spi.executor.item.param.ShardingContext;
import org.apache.shardingsphere.elasticjob.simple.job.SimpleJob;

/** The job. Its name is what peers find in the job's root node. */
public final class OrderJob implements SimpleJob {

    @Override
    public void execute(ShardingContext context) {
        Work.execute(context.getShardingItem(), context.getShardingParameter(), context.getJobParameter(),
                context.getShardingTotalCount(), context.getTaskId());
    }
}
