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
)

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
	sha, err := i.procs.Sum(path)
	check.NoError(t, err)
	check.NoError(t, i.binaries.signed(file{path: path}, sha))
	_, unpin, err := sup.store.Add(path, "plugin", i.binaries.admit)
	check.NoError(t, err)
	unpin()
	check.NoError(t, os.WriteFile(path, []byte("#!/bad/sh"), 0o700)) //nolint:gosec // it is a program
	if bin, _, err := sup.store.Add(path, "plugin", i.binaries.admit); !errors.Is(err, signing.ErrSignature) {
		t.Errorf("a copy of the changed file is made, %+v, %v", bin, err)
	}
	back := func(src, temp, kept, sha string) error { // the file is right again once it is copied
		check.NoError(t, os.WriteFile(path, text, 0o700)) //nolint:gosec // it is a program
		return i.binaries.admit(src, temp, kept, sha)
	}
	if bin, _, err := sup.store.Add(path, "plugin", back); !errors.Is(err, signing.ErrSignature) {
		t.Errorf("a copy of what the file was is made, %+v, %v", bin, err)
	}
}
