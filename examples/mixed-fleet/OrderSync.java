import org.apache.shardingsphere.elasticjob.api.JobConfiguration;
import org.apache.shardingsphere.elasticjob.api.ShardingContext;
import org.apache.shardingsphere.elasticjob.lite.api.bootstrap.impl.ScheduleJobBootstrap;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperConfiguration;
import org.apache.shardingsphere.elasticjob.reg.zookeeper.ZookeeperRegistryCenter;
import org.apache.shardingsphere.elasticjob.simple.job.SimpleJob;

/** The Java half of the fleet: ElasticJob as it always was. Arguments: the ZooKeeper servers and the namespace. */
public final class OrderSync implements SimpleJob {

    @Override
    public void execute(ShardingContext context) {
        System.out.println("java " + context.getShardingItem() + " " + context.getShardingParameter());
    }

    public static void main(String[] arguments) {
        ZookeeperConfiguration zookeeper = new ZookeeperConfiguration(arguments[0], arguments[1]);
        ZookeeperRegistryCenter registry = new ZookeeperRegistryCenter(zookeeper);
        registry.init();
        JobConfiguration job = JobConfiguration.newBuilder("orderSync", 6)
                .cron("0/2 * * * * ?")
                .shardingItemParameters("0=Beijing,1=Shanghai,2=Guangzhou,3=Shenzhen,4=Chengdu,5=Hangzhou")
                .build();
        ScheduleJobBootstrap bootstrap = new ScheduleJobBootstrap(registry, new OrderSync(), job);
        bootstrap.schedule();
        Runtime.getRuntime().addShutdownHook(new Thread(bootstrap::shutdown));
    }
}
