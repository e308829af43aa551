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

	"github.com/pannier/pannier/host/internal/system/signing"
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
			unpin()
			cut()
			_, unpinAgain, err := s.use(bin.sha, "plugin", "")
			check.NoError(t, err)
			unpinAgain()
		})
	}
}

// A file is read again only if it has changed.
func TestFilesAreReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin")
	check.NoError(t, os.WriteFile(path, []byte("#!/bin/sh"), 0o700)) //nolint:gosec // it is a program
	i := newInstance(New(Config{DataDir: t.TempDir()}), "plugin", Plugin{Name: "plugin"})
	right, err := i.sum(path)
	check.NoError(t, err)
	seen := i.sums[path]
	seen.SHA256 = "seen"
	i.sums[path] = seen
	if got, err := i.sum(path); err != nil || got != "seen" {
		t.Errorf("a file that has not changed was read again: %s, %v", got, err)
	}
	check.NoError(t, os.Chmod(path, 0o755)) //nolint:gosec // it is a program
	if got, err := i.sum(path); err != nil || got != right {
		t.Errorf("the checksum of a changed file is %s, %v, want %s", got, err, right)
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
