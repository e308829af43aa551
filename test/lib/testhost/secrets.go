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

// jwt matches a JSON Web Token in its encoded form (RFC 7519). Its header and its claims are JSON objects, which
// determines how they begin.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`)

// Leaks searches for secrets, and for any JWT, where none may be: in the host's files except those below
// SecretsDir that others cannot read, in the arguments and environments of its processes, in the output of its
// commands, and in shown. It returns the places.
func (h *Host) Leaks(secrets []string, shown ...string) (places []string) {
	h.t.Helper()
	look := func(place string, text []byte) {
		if Reveals(text, secrets) {
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
			if err == nil { // otherwise it has ended
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

// gone ignores files that were removed meanwhile.
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

// Reveals reports whether a text contains one of the secrets, plain or as part of base64, or any JWT.
func Reveals(text []byte, secrets []string) bool {
	return jwt.Match(text) || slices.ContainsFunc(secrets, func(secret string) bool {
		return slices.ContainsFunc(spellings(secret), func(s string) bool { return bytes.Contains(text, []byte(s)) })
	})
}

// spellings returns the secret, and the parts of its base64 form that do not depend on the text around it.
func spellings(secret string) []string {
	all := []string{secret}
	for before := range 3 {
		text := base64.RawStdEncoding.EncodeToString([]byte("\x00\x00"[:before] + secret))
		if rest := (before + len(secret)) % 3; rest != 0 {
			text = text[:len(text)-1] // shared with the text after it
		}
		all = append(all, text[(before*8+5)/6:])
	}
	return all
}
