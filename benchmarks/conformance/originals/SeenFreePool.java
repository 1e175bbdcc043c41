package originals;

import org.apache.storm.scheduler.multitenant.FreePool;

/** A FreePool that can be looked at afterwards. */
public class SeenFreePool extends FreePool {
    public SeenFreePool() {
        Pools.MADE.add(this);
    }
}
