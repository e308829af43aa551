package testhost

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// jwt is a JSON Web Token as it is sent (RFC 7519): its header and its claims are JSON
// objects, and so begin.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`)

// Leaks looks for secrets, and for any JWT, where none may be: in the host's files but
// those below SecretsDir that are closed to others, whoever may read them, in the
// arguments and the environments of its processes, and in what its commands tell of it
// (shown adds to that). It returns the places.
func (h *Host) Leaks(secrets []string, shown ...string) (places []string) {
	h.t.Helper()
	look := func(place string, text []byte) {
		if reveals(text, secrets) {
			places = append(places, place)
		}
	}
	for _, text := range shown {
		look(fmt.Sprintf("what was shown: %.40q…", text), []byte(text))
	}
	h.lookAtFiles(look)
	pids := h.Processes()
	if h.agent != nil {
		pids = append(pids, h.agent.Process.Pid)
		for _, command := range [][]string{
			{"status"}, {"plugin", "status"}, {"workload", "status"}, {"token", "list"}, {"events", "-recent", "1000"},
		} {
			look("pannier "+strings.Join(command, " "), []byte(h.Run(command...)))
			look("pannier "+strings.Join(command, " ")+" -o json", []byte(h.Run(append(command, "-o", "json")...)))
		}
	}
	for _, pid := range pids {
		for _, name := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err == nil { // else it has ended
				look(fmt.Sprintf("%s of process %d", name, pid), text)
			}
		}
	}
	return places
}

func (h *Host) lookAtFiles(look func(place string, text []byte)) {
	h.t.Helper()
	err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return gone(err)
		}
		info, err := d.Info()
		if err != nil {
			return gone(err)
		}
		if strings.HasPrefix(path, h.SecretsDir()+"/") && info.Mode().Perm()&0o077 == 0 {
			return nil
		}
		text, err := readUnlessProgram(path)
		look(path, text)
		return gone(err)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// gone takes what was removed in between for nothing.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readUnlessProgram(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	begin := make([]byte, 4)
	if _, err := f.Read(begin); err == nil && string(begin) == "\x7fELF" {
		return nil, nil
	}
	return os.ReadFile(path)
}

// reveals says whether a text has one of the secrets in it, as it is or as a part of
// something in base64, or any JWT.
func reveals(text []byte, secrets []string) bool {
	return jwt.Match(text) || slices.ContainsFunc(secrets, func(secret string) bool {
		return slices.ContainsFunc(spellings(secret), func(s string) bool { return bytes.Contains(text, []byte(s)) })
	})
}

// spellings of a secret: itself, and what is the same of its base64 whatever stands
// before and after it.
func spellings(secret string) []string {
	all := []string{secret}
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString([]byte("\x00\x00"[:before] + secret))
		if rest := (before + len(secret)) % 3; rest != 0 {
			text = text[:len(text)-1] // shared with what comes after
		}
		all = append(all, text[(before*8+5)/6:])
	}
	return all
}
