package bench

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// The floor of an idle host is as many processes that only wait: one has both stores open, leads alone, and is
// connected to four servers of go-plugin's, of which the first asks the driver as csi-bridge does.

const idlePlugins = 4

// floorIdle is TestMain of the first process. It writes the processes of the servers, the one with the driver first,
// into a file, and ends with its standard input.
func floorIdle(dir, program, driver string) error {
	defer plugin.CleanupClients()
	var g errgroup.Group
	g.Go(func() error {
		_, _, err := openStores(dir)
		return err
	})
	pids := make([]string, idlePlugins)
	args := []string{driver}
	for n := range pids {
		client := plugin.NewClient(&plugin.ClientConfig{
			HandshakeConfig:  plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH", MagicCookieValue: "1"},
			Plugins:          plugin.PluginSet{},
			Cmd:              exec.Command(program, args...),
			AutoMTLS:         true,
			AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
			Logger:           hclog.NewNullLogger(),
			Managed:          true,
		})
		g.Go(func() error {
			_, err := client.Client()
			pids[n] = client.ID()
			return err
		})
		args = nil
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := writeSynced(idlePIDs(dir), []byte(strings.Join(pids, " "))); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func idlePIDs(dir string) string { return filepath.Join(dir, "pids") }

// startIdleFloor starts these processes. The second one asks the driver.
func startIdleFloor(b *testing.B, driver string) (pids []int) {
	b.Helper()
	source, err := filepath.Abs("testdata/bare")
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	first := startFloor(b, "idle", dir, testbin.BuildDir(b, source), driver)
	var servers []byte
	check.Eventually(b, "the floor's processes run", func() (ok bool) {
		servers, err = os.ReadFile(idlePIDs(dir))
		return err == nil
	})
	pids = []int{first.Pid}
	for _, server := range strings.Fields(string(servers)) {
		pid, err := strconv.Atoi(server)
		if err != nil {
			b.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
