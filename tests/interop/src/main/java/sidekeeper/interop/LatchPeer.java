package sidekeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * A candidate of Curator's LeaderLatch. Arguments: ZooKeeper's address, the latch's path, and the candidate's id. Commands on
 * standard input: "stand" and "leave"; "leader" tells the leader's id as Curator reads it. Tells "leads" with the czxid of the
 * candidate's node.
 */
public final class LatchPeer {

    private LatchPeer() {}

    public static void main(String[] arguments) throws Exception {
        Events.claimStandardOutput();
        String path = arguments[1];
        String id = arguments[2];
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], 10_000, 10_000, new ExponentialBackoffRetry(100, 3));
        client.start();
        LeaderLatch latch = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            switch (line) {
                case "stand" -> {
                    latch = new LeaderLatch(client, path, id);
                    latch.addListener(new TellsThatItLeads(client, latch));
                    latch.start();
                }
                case "leave" -> latch.close();
                case "leader" -> {
                    Participant leader = latch.getLeader();
                    Events.tell("leader", "id", leader.getId(), "leads", leader.isLeader());
                    continue;
                }
                default -> throw new IllegalArgumentException(line);
            }
            Events.tell(line);
        }
        Runtime.getRuntime().halt(0);
    }

    private record TellsThatItLeads(CuratorFramework client, LeaderLatch latch) implements LeaderLatchListener {

        @Override
        public void isLeader() {
            try {
                Events.tell("leads", "term", client.checkExists().forPath(latch.getOurPath()).getCzxid());
            } catch (Exception failed) {
                failed.printStackTrace();
                Events.tell("failed", "error", String.valueOf(failed));
            }
        }

        @Override
        public void notLeader() {
            Events.tell("follows");
        }
    }
}
