package systemd

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds what a boot or a shutdown may wait for the agent: each of its units' jobs, and the whole shutdown.
const patience = 30 * time.Second

// bootKills are what is killed at random moments of a boot and a shutdown, by the names of the programs.
var bootKills = []string{"pannier-agent", "csi-local", "csi-bridge", "mount.pannier", "umount.pannier", "pannier"}

// boots is a host that is booted again and again. Its volumes are mounted by fstab, a mount unit, an automount and a
// workload's unit.
type boots struct {
	*host
	rand *rand.Rand
	n    int // how often it has booted with its volumes
}

func newBoots(t *testing.T, seed uint64) *boots {
	t.Helper()
	b := &boots{host: newHost(t, "pannier.socket"), rand: rand.New(rand.NewPCG(seed, seed))}
	b.helpers()
	b.packaged("pannier-workload@.service")
	b.Boot()
	for _, id := range []string{"fstab", "lazy", "unit", "state"} {
		b.create(id)
	}
	b.Write("/etc/fstab", `
pannier:fstab /fstab pannier _netdev,nofail 0 0
pannier:lazy /lazy pannier _netdev,nofail,x-systemd.automount 0 0
`, 0o644)
	b.unit("unit.mount", `[Mount]
What=pannier:unit
Where=/unit
Type=pannier`)
	b.Write("/etc/pannier/workloads/app.hcl", `workload "app" {
  volume "state" {
    source      = "state"
    destination = "/state"
  }
}`, 0o644)
	b.unit("app.service", `[Unit]
Requires=pannier-workload@app.service
After=pannier-workload@app.service
[Service]
ExecStart=/bin/sh -c 'echo started >>/state/starts && exec sleep infinity'
Restart=on-failure
RestartSec=1s`)
	b.Write("/etc/systemd/system/app.service.d/pannier.conf",
		b.Run("pannier", "workload", "start", "-o", "systemd-dropin", "/etc/pannier/workloads/app.hcl"), 0o644)
	b.Run("systemctl", "daemon-reload")
	return b
}

// during runs what boots or shuts down the machine, and meanwhile kills a program at a random moment of it.
func (b *boots) during(what func()) {
	b.t.Helper()
	program := bootKills[b.rand.IntN(len(bootKills))]
	after := time.Duration(b.rand.Int64N(int64(2 * time.Second)))
	done := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		select {
		case <-time.After(after): // the moment of the kill
			_, _ = b.Try("pkill", "-KILL", "-x", program) // in the machine's own processes; it may have none
		case <-done:
		}
	})
	defer killer.Wait()
	defer close(done)
	what()
}

// check compares the booted machine with what its files want.
func (b *boots) check() {
	b.t.Helper()
	b.n++
	for _, unit := range []string{"fstab.mount", "unit.mount", "pannier-workload@app.service", "app.service"} {
		b.becomes(unit, "active")
		if took := b.waited(unit); took > patience {
			b.t.Errorf("boot %d: %s took %v", b.n, unit, took)
		}
	}
	for _, path := range []string{"/fstab", "/unit", "/lazy"} {
		b.Run("sh", "-c", fmt.Sprintf("echo %d >>%s/boots", b.n, path)) // mounts /lazy
		if n := strings.Count(b.Run("cat", path+"/boots"), "\n"); n != b.n {
			b.t.Errorf("boot %d: %s has %d lines", b.n, path, n)
		}
		if n := strings.Count(b.Run("cat", "/proc/mounts"), " "+path+" ext4 "); n != 1 {
			b.t.Errorf("boot %d: %s is mounted %d times", b.n, path, n)
		}
	}
	for _, id := range []string{"fstab", "unit", "lazy", "state"} {
		if !b.claimed(id) {
			b.t.Errorf("boot %d: volume %s is mounted, and nobody has claimed it", b.n, id)
		}
	}
}

// waited returns how long a unit's start has taken.
func (b *boots) waited(unit string) time.Duration {
	b.t.Helper()
	at := func(property string) time.Duration {
		n, err := strconv.ParseInt(b.show(unit, property), 10, 64)
		if err != nil {
			b.t.Fatal(err)
		}
		return time.Duration(n) * time.Microsecond
	}
	return at("ActiveEnterTimestampMonotonic") - at("InactiveExitTimestampMonotonic")
}

// TestBoots reboots and power cycles a host while its programs are killed at random moments.
func TestBoots(t *testing.T) {
	t.Parallel()
	seed := *bootSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-boot-seed=%d", seed)
	b := newBoots(t, seed)
	for n := range *bootCount {
		begin := time.Now()
		if b.rand.IntN(4) == 0 {
			b.during(b.PowerCycle)
		} else {
			b.during(b.Reboot)
		}
		took := time.Since(begin)
		b.check()
		fmt.Printf("boot %d of %d: %.1f s\n", n+1, *bootCount, took.Seconds())
	}
}
