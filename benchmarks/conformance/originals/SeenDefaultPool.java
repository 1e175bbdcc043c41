package originals;

import org.apache.storm.scheduler.multitenant.DefaultPool;

/** A DefaultPool that can be looked at afterwards. */
public class SeenDefaultPool extends DefaultPool {
    public SeenDefaultPool() {
        Pools.MADE.add(this);
    }
}
