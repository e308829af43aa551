package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/host/internal/system/program"
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

// A new file is read once: the look at it makes the copy that runs. A copy that is not taken does not stay.
func TestALookMakesTheCopy(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "plugin")
	put := func(text string) {
		t.Helper()
		check.NoError(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // it is a program
	}
	sup := New(Config{DataDir: dir})
	check.NoError(t, os.Mkdir(sup.dir, 0o700))
	sup.store = &store{dir: sup.dir, pins: map[string]int{}}
	i := newInstance(sup, "plugin", Plugin{Name: "plugin"})
	entries := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(sup.dir, "*")) // also those that start with a dot
		check.NoError(t, err)
		return found
	}

	done := i.copying()
	put("#!/bin/sh")
	_, err := i.sum(path)
	check.NoError(t, err)
	put("#!/bin/bash")
	looked, err := i.sum(path)
	check.NoError(t, err)
	put("#!/bin/dash -x")
	copied := func() (sha string) {
		t.Helper()
		bin, unpin, err := i.copyOf(source{sha: looked, path: path})
		check.NoError(t, err)
		unpin()
		got, err := program.Sum(bin.path)
		check.NoError(t, err)
		if bin.sha != got {
			t.Errorf("the copy of %s is %s", bin.sha, got)
		}
		return got
	}
	if got := copied(); got != looked {
		t.Errorf("%s was looked at, and the copy is %s", looked, got)
	}
	done()

	done = i.copying()
	_, err = i.sum(path)
	check.NoError(t, err)
	put("#!/bin/zsh")
	if copied() == looked { // the look was at something else than what is asked for
		t.Error("the file was not copied again")
	}
	if len(entries()) != 3 {
		t.Errorf("the look made no copy: there are %v", entries())
	}
	done()
	if len(entries()) != 2 {
		t.Errorf("a copy was not taken, and there are %v", entries())
	}
}
