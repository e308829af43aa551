package cli

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"
)

const slowVolume = `id = "slow"
type = "csi"
plugin_id = "local"
capability {
  access_mode = "single-node-writer"
  attachment_mode = "file-system"
}
`

// A person who waits is told for what: the leader, or what is under way.
func TestAnnounce(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "slow.hcl")
	check.NoError(t, os.WriteFile(spec, []byte(slowVolume), 0o600))
	createVolume := []string{"volume", "create", spec}
	for want, args := range map[string][]string{
		"waiting for the cluster's leader ...":                      createVolume,
		"waiting: create volume is under way; last: line break ...": createVolume,
		"waiting: save snapshot is under way; last: line break ...": {"operator", "snapshot", "save", spec + ".copy"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := startFake(t)
			f.slow, f.leaderless = make(chan struct{}), strings.Contains(want, "leader")
			f.hasLedger(t)
			keyboard, terminal := clitest.Terminal(t)
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			check.NoError(t, err)
			defer out.Close()
			code := make(chan int)
			go func() {
				code <- Main(Options{
					Args: append([]string{"-address", "unix://" + f.socket}, args...), Stdout: out, Stderr: terminal,
				})
			}()
			lines := bufio.NewScanner(keyboard)
			if !lines.Scan() || strings.TrimSpace(lines.Text()) != want {
				t.Errorf("it says %q, %v", lines.Text(), lines.Err())
			}
			close(f.slow)
			if got := <-code; got != ExitOK {
				t.Error(fmt.Errorf("exit code %d", got))
			}
		})
	}
}
