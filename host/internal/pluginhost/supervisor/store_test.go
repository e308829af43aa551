package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
)

// After a loss of power the copy of a plugin is whole, or is not there.
func TestCopyAfterALossOfPower(t *testing.T) {
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			dir, cut := powerloss.Disk(t, fstype)
			plugin := filepath.Join(t.TempDir(), "plugin")
			check.NoError(t, os.WriteFile(plugin, []byte("#!/bin/sh"), 0o700)) //nolint:gosec // it is a program
			s := &store{dir: dir, pins: map[string]int{}}
			bin, unpin, err := s.add(plugin, "plugin", "")
			check.NoError(t, err)
			defer unpin()
			cut()
			_, unpinAgain, err := s.use(bin.sha, "plugin", "")
			check.NoError(t, err)
			unpinAgain()
		})
	}
}
