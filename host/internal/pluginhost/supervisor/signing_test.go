package supervisor_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/signing"
)

// author signs plugins.
type author struct {
	public  signing.Key
	private minisign.PrivateKey
}

func newAuthor(t *testing.T) author {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParseKey(public.String())
	if err != nil {
		t.Fatal(err)
	}
	return author{key, private}
}

// sign returns the signature of data as minisign -S makes it of a file with that name.
func (a author) sign(data []byte, file string) []byte {
	r := minisign.NewReader(bytes.NewReader(data))
	_, _ = io.Copy(io.Discard, r) // it cannot fail
	return r.SignWithComments(a.private, "timestamp:1\tfile:"+file+"\thashed", "a comment")
}

// signed lets a world run only what an author has signed, and signs its fixture.
func (w *world) signed(a author) {
	w.t.Helper()
	w.cfg.Signing = signing.Policy{Keys: []signing.Key{a.public}, Required: true}
	w.sign(a, "fixture")
}

// sign signs a file of the plugin directory under its own name.
func (w *world) sign(a author, file string) {
	w.t.Helper()
	data, err := os.ReadFile(w.path(file))
	w.must(err)
	w.must(os.WriteFile(w.path(file)+signing.SignatureEnd, a.sign(data, file), 0o644))
}

// A plugin without a valid signature is not started, the status explains why, and the right signature mends it at once.
func TestUnsignedIsNotStarted(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthor(t), newAuthor(t)
	binary := func(w *world) []byte {
		data, err := os.ReadFile(w.path("fixture"))
		w.must(err)
		return data
	}
	for says, proof := range map[string]func(w *world) signing.Proof{
		"it is not signed": func(*world) signing.Proof { return signing.Proof{} },
		"which is not one of the agent's (" + ours.public.ID() + ")": func(w *world) signing.Proof {
			return signing.Proof{Signature: theirs.sign(binary(w), "fixture")}
		},
		"is of another file": func(*world) signing.Proof {
			return signing.Proof{Signature: ours.sign([]byte("another"), "fixture")}
		},
		"is damaged": func(w *world) signing.Proof {
			return signing.Proof{Signature: ours.sign(binary(w), "fixture")[:100]}
		},
		"old form": func(w *world) signing.Proof {
			return signing.Proof{Signature: minisign.Sign(ours.private, binary(w))}
		},
		"the signature is of other, not of fixture": func(w *world) signing.Proof {
			return signing.Proof{Signature: ours.sign(binary(w), "other")}
		},
		"the plugin's version is 1.2.3, and its signature or file is for 1.3.0": func(w *world) signing.Proof {
			return signing.Proof{Signature: ours.sign(binary(w), "fixture_v1.3.0_linux_amd64")}
		},
		"does not have its checksum": func(w *world) signing.Proof {
			sums := []byte(strings.Repeat("0", 64) + "  fixture_v1.2.3_linux_amd64\n")
			return signing.Proof{Signature: ours.sign(sums, "SHA256SUMS"), Sums: sums}
		},
		"the signature is of other_v1.2.3, not of fixture": func(w *world) signing.Proof {
			sums := fmt.Appendf(nil, "%s  other_v1.2.3\n", sumOf(w.t, w.path("fixture")))
			return signing.Proof{Signature: ours.sign(sums, "SHA256SUMS"), Sums: sums}
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.signed(ours)
			w.must(proof(w).Write(w.path("fixture")))
			s := w.open()
			st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State != supervisor.Starting })
			if !strings.Contains(st.LastError, says) || len(w.pids()) != 0 {
				t.Errorf("status %+v, processes %v; want an error with %q", st, w.pids(), says)
			}
			if _, err := s.Verify(within(t), w.path("fixture")); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("verified: %v", err)
			}
			w.must(signing.Remove(w.path("fixture") + signing.SumsEnd))
			w.sign(ours, "fixture")
			mustCall(t, s, "fixture", "")
		})
	}
}

// A signed SHA256SUMS is as good as a signature of the binary.
func TestSignedSums(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newAuthor(t)
	w.signed(a)
	sums := fmt.Appendf(nil, "%s  fixture_v1.2.3_linux_arm64\n%[1]s *fixture_v1.2.3_linux_amd64\n",
		sumOf(t, w.path("fixture")))
	w.must(signing.Proof{Signature: a.sign(sums, "SHA256SUMS"), Sums: sums}.Write(w.path("fixture")))
	s := w.open()
	mustCall(t, s, "fixture", "")
}

// An unsigned file does not replace a signed one. With a signature it takes over, and the rollback goes to a copy that
// was signed too.
func TestUnsignedDoesNotTakeOver(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newAuthor(t)
	w.signed(a)
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	w.place("fixture_v2.0.0", "\n#fixture good 2.0.0\n")
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem != "" })
	if !strings.Contains(st.FileProblem, w.path("fixture_v2.0.0")+": no valid signature: it is not signed") {
		t.Errorf("status: %+v", st)
	}
	w.reported("fixture", st.FileProblem)
	if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
		t.Error("it was replaced")
	}
	w.sign(a, "fixture_v2.0.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "2.0.0" && st.FileProblem == "" })
	if st, err := s.Rollback(within(t), "fixture", "", nil); err != nil || st.Version != "1.2.3" {
		t.Errorf("rolled back: %+v, %v", st, err)
	}
}

// A file is changed, and has the same size, modification time and inode as before. That is noticed, and the copy that
// served runs again.
func TestChangedAtTheSameTime(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newAuthor(t)
	w.place("fixture", "\n#fixture good 1.2.3\n")
	w.signed(a)
	s := w.open()
	mustCall(t, s, "fixture", "")
	info, err := os.Stat(w.path("fixture"))
	w.must(err)
	f, err := os.OpenFile(w.path("fixture"), os.O_WRONLY, 0)
	w.must(err)
	_, err = f.WriteAt([]byte("\n#fixture good 6.6.6\n"), info.Size()-int64(len("\n#fixture good 6.6.6\n")))
	w.must(err)
	w.must(f.Close())
	w.must(os.Chtimes(w.path("fixture"), info.ModTime(), info.ModTime()))
	if _, err := call(t, s, "fixture", "exit"); err == nil {
		t.Error("the call that killed it succeeded")
	}
	st := await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.Version == "6.6.6" || st.Restarts > 0 && st.State == supervisor.Running && st.FileProblem != ""
	})
	if st.Version == "6.6.6" || !strings.Contains(st.FileProblem, "is of another file") {
		t.Errorf("status: %+v", st)
	}
}

// A key is removed. What runs goes on, and is not started again, neither from the file nor from the kept copy.
func TestKeyIsRemoved(t *testing.T) {
	t.Parallel()
	w, a, b := newWorld(t), newAuthor(t), newAuthor(t)
	w.signed(a)
	w.cfg.StopPlugins = false
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	w.must(s.Close())
	w.must(os.Remove(w.path("fixture")))
	w.must(os.Remove(w.path("fixture") + signing.SignatureEnd))
	w.cfg.Signing.Keys = []signing.Key{b.public}
	w.cfg.StopPlugins = true
	s = w.open()
	if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
		t.Error("it was replaced")
	}
	if _, err := call(t, s, "fixture", "exit"); err == nil {
		t.Error("the call that killed it succeeded")
	}
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Failed })
	if !strings.Contains(st.LastError, "not one of the agent's") || len(w.pids()) != 0 {
		t.Errorf("status %+v, processes %v", st, w.pids())
	}
	w.must(s.Close())
	w.cfg.Signing.Keys = append(w.cfg.Signing.Keys, a.public)
	s = w.open()
	mustCall(t, s, "fixture", "") // from its copy, which has kept its signature
}

// What is beside a plugin as its signature may be anything.
func TestHostileSignatures(t *testing.T) {
	t.Parallel()
	a := newAuthor(t)
	for says, put := range map[string]func(path string) error{
		"larger than":    func(path string) error { return os.WriteFile(path, make([]byte, signing.MaxSignature+1), 0o644) },
		"not signed":     func(path string) error { return unix.Mkfifo(path, 0o600) },
		"is a directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"symbolic links": func(path string) error { return os.Symlink(filepath.Base(path), path) },
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.signed(a)
			w.must(os.Remove(w.path("fixture") + signing.SignatureEnd))
			w.must(put(w.path("fixture") + signing.SignatureEnd))
			s := w.open()
			st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.LastError != "" })
			if !strings.Contains(st.LastError, says) || len(w.pids()) != 0 {
				t.Errorf("status: %+v", st)
			}
		})
	}
}
