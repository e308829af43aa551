package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testbin"
)

// draw draws the timeouts of each server of a story, as HCL by name. soonest is when a leader may release the claims of
// a silent node, and letGo when the last one does: after the longest timeouts of all.
func draw(t *testing.T, seed uint64, servers int) (config map[string]string, soonest, letGo time.Duration) {
	t.Helper()
	chance := rand.New(rand.NewPCG(seed, 0))
	config = map[string]string{}
	soonest = time.Hour
	var stop, margin time.Duration
	for n := range servers + 1 { // one is added later
		ttl := between(chance, 600*time.Millisecond, 1100*time.Millisecond).Truncate(100 * time.Millisecond)
		stopAfter := between(chance, 1200*time.Millisecond, 1800*time.Millisecond).Truncate(100 * time.Millisecond)
		least := leastMargin(t, stopAfter)
		if chance.IntN(2) == 0 {
			least += between(chance, 0, 700*time.Millisecond).Truncate(100 * time.Millisecond)
		}
		config[fmt.Sprintf("server-%d", n+1)] = fmt.Sprintf("heartbeat_ttl = %q\nstop_after = %q\nstop_margin = %q", ttl,
			stopAfter, least)
		soonest, stop, margin = min(soonest, stopAfter+least), max(stop, stopAfter), max(margin, least)
	}
	return config, soonest, stop + margin
}

// needed is in the message of an agent that refuses a margin.
var needed = regexp.MustCompile(`set stop_margin to (\S+) or more`)

// leastMargin is the smallest margin that an agent admits beside a stop_after, which its refusal of a smaller one says.
func leastMargin(t *testing.T, stopAfter time.Duration) time.Duration {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.hcl")
	text := fmt.Sprintf("name = \"a\"\ndata_dir = %q\nserver {\n  heartbeat_ttl = \"500ms\"\n  stop_after = %q\n"+
		"  stop_margin = \"1ms\"\n}\n", filepath.Join(dir, "data"), stopAfter)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testbin.Build(t, "host/cmd/pannier-agent"), "-config", file).CombinedOutput()
	found := needed.FindSubmatch(out)
	if err == nil || found == nil {
		t.Fatalf("an agent with a margin of 1 ms came to %v, and names no margin: %s", err, out)
	}
	least, err := time.ParseDuration(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return least
}
