package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/trusted"
)

// binaries are those that a plugin may run from: its files in the plugin directory, and the copies that are kept.
type binaries struct {
	*instance
	proofs   map[string]proven // signatures of the files
	promised *version.Version  // that the next process has to report; nil: any
}

// choose returns the binary that should run: the copy that an operator pinned, else the highest version in the
// plugin directory that the configuration allows and that was not refused, else the copy that served last, or the
// one before it. A file that cannot be run now, which the status then shows, does not replace the copy that served.
func (i *binaries) choose() (managed.Source, error) {
	src, problems, err := i.candidate()
	now := i.versions()
	if !slices.Equal(now, i.snapshot().Versions) {
		i.set("", "", func(s *Status) { s.Versions = now })
	}
	is := func(v Version) bool { return v.SHA256 == i.tried && v.File != "" }
	if i.tried != "" && i.current.Load() != nil && !slices.ContainsFunc(now, is) {
		i.tried = "" // its file is gone
		i.set("", "", func(s *Status) { s.LastError = "" })
	}
	if slices.ContainsFunc(problems, isWriting) { // the directory does not change when the writer closes the file
		i.procs.RecheckIn(settleTime)
	}
	if i.sup.found.unsettled.Load() || err == nil && slices.ContainsFunc(problems, managed.IsGone) {
		return src, err // a file is just being replaced or removed: the next look at the directory says which
	}
	text := ""
	problems = slices.DeleteFunc(problems, isWriting)
	if err == nil && len(problems) > 0 { // otherwise the error says it
		text = strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
		if src.Path == "" {
			text += "; the copy that served goes on"
		}
	}
	if i.snapshot().FileProblem != text {
		what := EventFile
		if text == "" {
			what = ""
		}
		i.set(what, text, func(s *Status) { s.FileProblem, s.Mend = text, mend(errors.Join(problems...)) })
	}
	return src, err
}

// isWriting says that the file is still being written.
func isWriting(err error) bool { return errors.Is(err, program.ErrWriting) }

// candidate returns the binary that should run and what is wrong with the plugin's files.
func (i *binaries) candidate() (src managed.Source, problems []error, err error) {
	files, problems := i.allowed()
	all := make([]managed.File, 0, len(files))
	for _, f := range files {
		all = append(all, managed.File{Path: f.path, Check: func(sha string) error {
			if err := i.signed(f, sha); err != nil {
				return err
			}
			if is := i.rec.VersionOf(sha); is != "" {
				if err := checkPromised(f.version, is); err != nil {
					return fmt.Errorf("%s: %w", f.path, err)
				}
			}
			return nil
		}})
	}
	src, more, err := i.procs.Candidate(all)
	wrong := i.sup.found.wrong()
	if wrong == nil && len(files) == 0 {
		wrong = &missing{name: i.name, dir: i.sup.cfg.PluginDir, kept: i.procs.Kept() != nil}
	}
	if wrong != nil {
		problems = append(problems, wrong)
	}
	if src == (managed.Source{}) && err == nil {
		err = wrong
	}
	return src, append(problems, more...), err
}

// mend returns the command that mends what an error says; empty: no single one does.
func mend(err error) string {
	if m := (*trusted.Error)(nil); errors.As(err, &m) {
		return m.Command
	}
	if m := (*missing)(nil); errors.As(err, &m) {
		return "pannier agent plugin install SOURCE " + m.name
	}
	return ""
}

// missing says that the plugin directory has no file of a plugin.
type missing struct {
	name, dir string
	kept      bool // a copy is kept
}

func (m *missing) Error() string {
	text := fmt.Sprintf("open the plugin: %s has no file of it: %v", m.dir, syscall.ENOENT)
	if m.kept {
		text += "; put it back, or run: pannier plugin remove " + m.name
	}
	return text
}

// allowed returns the plugin's files that satisfy the version constraint, the highest version first. A file
// without a version in its name is always included, because only its process can report its version. Of two files of
// one version the one that served is taken, else the first by name; problems says so.
func (i *binaries) allowed() (files []file, problems []error) {
	for _, f := range i.sup.found.files(i.name) {
		if f.version != nil && i.spec.checkVersion(f.version.String()) != nil {
			continue
		}
		last := len(files) - 1
		if last < 0 || files[last].compare(f) != 0 {
			files = append(files, f)
			continue
		}
		if !f.executable {
			continue
		}
		if filepath.Base(f.path) == i.rec.File {
			files[last], f = f, files[last]
		}
		problems = append(problems, fmt.Errorf("%s is refused: %s is the same plugin in the same version: remove %s", f.path,
			files[last].path, f.path))
	}
	return files, problems
}

// proven is what signed found of a file.
type proven struct {
	sha   string
	proof signing.Proof
	err   error
}

// signed returns why a file is not signed as the host requires. It reads the file only if that, or its signature, has
// changed. It is a first look, so that what is wrong shows in the status: the copy is what counts (see admit).
func (i *binaries) signed(f file, sha string) error {
	if !i.sup.cfg.Signing.Required {
		return nil
	}
	proof, err := signing.Beside(f.path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	was, ok := i.proofs[f.path]
	if ok && was.sha == sha && was.proof.Equal(proof) {
		return was.err
	}
	now := proven{sha: sha, proof: proof}
	if _, now.err = i.checkSigned(f.path, f.path, proof); now.err != nil {
		now.err = managed.NewPermanent(fmt.Errorf("%s: %w", f.path, now.err))
	}
	i.proofs[f.path] = now
	return now.err
}

// checkSigned returns signing.ErrSignature unless a key that this host trusts has signed a copy of the file src, if it
// requires that. want is the version that the process has to report; nil: any.
func (i *binaries) checkSigned(src, copied string, proof signing.Proof) (want *version.Version, err error) {
	_, v := signing.SplitVersion(filepath.Base(src))
	if !i.sup.cfg.Signing.Required {
		return v, nil
	}
	f, err := os.Open(copied)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	want, err = i.sup.cfg.Signing.Check(i.name, v, f, proof)
	return cmp.Or(want, v), err
}

// admit returns why a copy must not run, and keeps the signature of its file beside it.
func (i *binaries) admit(src, temp, kept, sha string) error {
	if err := i.checkAllowed(sha); err != nil {
		return err
	}
	proof, err := signing.Beside(src)
	if err != nil && i.sup.cfg.Signing.Required {
		return err
	}
	if i.promised, err = i.checkSigned(src, temp, proof); err != nil {
		if err = fmt.Errorf("%s: %w", src, err); errors.Is(err, signing.ErrSignature) { // which may arrive after the file
			err = managed.NewPermanent(err)
		}
		return err
	}
	if src == kept || len(proof.Signature) == 0 {
		return nil
	}
	return proof.Write(kept) // before the copy: whoever finds that finds both
}

// checkAllowed refuses a copy that the configuration does not allow any more. A copy that is only outdated keeps
// serving until the newer one is up.
func (i *binaries) checkAllowed(sha string) error {
	want, err := i.spec.checksum()
	if err == nil && want != "" && want != sha {
		err = fmt.Errorf("%w: it has sha256:%s, the configuration wants sha256:%s", managed.ErrChecksum, sha, want)
	}
	return err
}
