package supervisor

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"aead.dev/minisign"

	"github.com/pannier/pannier/host/internal/pluginhost/signing"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/atomicfile"
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
			s := newStore(dir, signing.Policy{})
			bin, unpin, err := s.add(plugin, "plugin", "")
			check.NoError(t, err)
			defer unpin()
			check.NoError(t, bin.onDisk())
			cut()
			_, unpinAgain, err := s.use(bin.sha, "plugin", "")
			check.NoError(t, err)
			unpinAgain()

			// It is copied again, and the power is lost before that copy is on the disk.
			lost := make(chan struct{})
			s.sync = func(path string) error {
				if path == bin.path {
					<-lost
					return nil
				}
				return atomicfile.Sync(path)
			}
			_, unpinLost, err := s.add(plugin, "plugin", "")
			check.NoError(t, err)
			other := filepath.Join(dir, "other") // whose sync brings the names of all files to the disk
			check.NoError(t, os.WriteFile(other, []byte("x"), 0o600))
			check.NoError(t, atomicfile.Sync(other))
			cut()
			close(lost)
			unpinLost()
			_, unpinAgain, err = s.use(bin.sha, "plugin", "")
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

// The next host does not read a file that has not changed since, and reads one that has. It knows nothing of a file
// that had just been changed.
func TestFilesAreReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin")
	check.NoError(t, os.WriteFile(path, []byte("#!/bin/sh"), 0o700)) //nolint:gosec // it is a program
	sup := New(Config{DataDir: t.TempDir()})
	check.NoError(t, os.Mkdir(sup.dir, 0o700))
	next := func() *instance {
		t.Helper()
		i := newInstance(sup, "plugin", Plugin{Name: "plugin"})
		var err error
		i.rec, err = loadRecord(sup.dir, "plugin")
		check.NoError(t, err)
		i.knowFiles()
		return i
	}
	sum := func(i *instance) string {
		t.Helper()
		sha, err := i.sum(path)
		check.NoError(t, err)
		return sha
	}
	i := next()
	right := sum(i)
	if i.saveFiles(); len(next().sums) != 0 {
		t.Error("the checksum of a file is kept, whose next change may have the same time")
	}
	seen := i.sums[path]
	seen.SHA256 = "seen"
	i.rec.hashed(path, seen, true)
	i.saveFiles()
	if i = next(); sum(i) != "seen" {
		t.Error("a file that has not changed was read again")
	}
	check.NoError(t, os.Chmod(path, 0o755)) //nolint:gosec // it is a program
	if got := sum(i); got != right {
		t.Errorf("the checksum of a changed file is %s, want %s", got, right)
	}
	if i.saveFiles(); len(next().sums) != 0 {
		t.Error("the checksum of the file as it was is kept")
	}
}

// A file is changed after its signature was checked. What runs is the copy, so that is what is checked.
func TestSwappedAfterTheCheck(t *testing.T) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	check.NoError(t, err)
	key, err := signing.ParseKey(public.String())
	check.NoError(t, err)
	sup := New(Config{DataDir: t.TempDir(), Signing: signing.Policy{Keys: []signing.Key{key}, Required: true}})
	check.NoError(t, os.Mkdir(sup.dir, 0o700))
	path, text := filepath.Join(t.TempDir(), "plugin"), []byte("#!/bin/sh")
	r := minisign.NewReader(bytes.NewReader(text))
	_, err = io.Copy(io.Discard, r)
	check.NoError(t, err)
	signature := r.SignWithComments(private, "timestamp:1\tfile:plugin\thashed", "a comment")
	check.NoError(t, os.WriteFile(path+signing.SignatureEnd, signature, 0o600))
	check.NoError(t, os.WriteFile(path, text, 0o700)) //nolint:gosec // it is a program

	i := newInstance(sup, "plugin", Plugin{Name: "plugin"})
	sha, err := i.sum(path)
	check.NoError(t, err)
	check.NoError(t, i.signed(file{path: path}, sha))
	_, unpin, err := i.copyOf(source{sha: sha, path: path})
	check.NoError(t, err)
	unpin()
	check.NoError(t, os.WriteFile(path, []byte("#!/bad/sh"), 0o700)) //nolint:gosec // it is a program
	if bin, _, err := i.copyOf(source{sha: sha, path: path}); !errors.Is(err, signing.ErrSignature) {
		t.Errorf("a copy of the changed file is made, %+v, %v", bin, err)
	}
}
