package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func unpack(t *testing.T, packed io.Reader) map[string]string {
	t.Helper()
	text, err := gzip.NewReader(packed)
	check.NoError(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(text); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check.NoError(t, err)
		content, err := io.ReadAll(archive)
		if err != nil || h.Mode != 0o600 {
			t.Fatalf("%s: mode %#o: %v", h.Name, h.Mode, err)
		}
		files[h.Name] = string(content)
	}
}

// Whatever a secret is written as, the file with it is left out and named, and the others are there.
func TestSecretsStayOut(t *testing.T) {
	const token, password = "4f1c7d2e-0000-4111-8222-333344445555", `pass "<word>"`
	const inKey = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg"
	dir := t.TempDir()
	for name, content := range map[string]string{
		"key.pem":    "-----BEGIN EC PARAMETERS-----\n" + inKey + "\n-----END EC PARAMETERS-----\n",
		"password":   password + "\n",
		"some.json":  "{\n  \"address\": \"127.0.0.1:8500\"\n}\n",
		"sub/folder": "in-a-sub-folder",
	} {
		path := filepath.Join(dir, name)
		check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	quoted, err := json.Marshal(password)
	check.NoError(t, err)
	jwt := "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJwYW5uaWVyIn0.c2lnbmF0dXJlLW9mLWl0"
	for name, c := range map[string]struct{ content, whose string }{
		"plain":         {"token is " + token, "the token"},
		"in a path":     {"/v1/x?token=" + token + "&y", "the token"},
		"in base64":     {base64.StdEncoding.EncodeToString([]byte("x-token: " + token + "; more")), "the token"},
		"of a file":     {"login with " + password + " failed", filepath.Join(dir, "password")},
		"in JSON":       {`{"v":` + string(quoted) + `}`, filepath.Join(dir, "password")},
		"of a key":      {inKey, filepath.Join(dir, "key.pem")},
		"of a folder":   {"the word in-a-sub-folder", filepath.Join(dir, "sub/folder")},
		"a JWT":         {"jwt=" + jwt, "a JSON Web Token"},
		"a private key": {"-----BEGIN PRIVATE KEY-----", "a private key"},
		"none":          {`"address": "127.0.0.1:8500", "4f1c7d2e-0000-4111"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Bundle{}
			b.Secret("the token", token)
			b.SecretFile(dir)
			b.SecretFile(filepath.Join(dir, "not there"))
			b.File("a").WriteString(c.content)
			b.File("b").WriteString("harmless")
			b.File("empty")
			b.Missing("c", errors.New(c.content))
			b.Missing("d", nil)
			var packed bytes.Buffer
			sum, err := b.Write(&packed, "folder")
			check.NoError(t, err)
			files := unpack(t, &packed)
			if c.whose == "" {
				if len(files) != 3 || files["folder/a"] != c.content || !slices.Equal(sum.Missing, []string{"c: " + c.content}) {
					t.Errorf("the archive has %q, and lacks %q", files, sum.Missing)
				}
				return
			}
			named := "a: it is left out, because it has a secret in it: " + c.whose + "\n"
			if len(files) != 2 || files["folder/b"] != "harmless" || sum.Files != 2 || len(sum.Missing) != 2 ||
				!strings.Contains(files["folder/"+ErrorsFile], named) {
				t.Errorf("the archive has %q, and lacks %q", files, sum.Missing)
			}
			if all := strings.Join(sum.Missing, "\n") + files["folder/"+ErrorsFile]; strings.Contains(all, c.content) {
				t.Errorf("the secret is in %q", all)
			}
		})
	}
}

// Of a log only the lines with a secret are left out, unless it is in several.
func TestLinesOfALog(t *testing.T) {
	const token = "4f1c7d2e-0000-4111-8222-333344445555"
	b := &Bundle{}
	b.Secret("the token", token)
	b.Secret("two lines", "first line\nsecond line")
	b.File("logs/a.log").WriteString("one\ntoken " + token + "\ntwo")
	b.File("logs/b.log").WriteString("first line\nsecond line\n")
	var packed bytes.Buffer
	sum, err := b.Write(&packed, "folder")
	check.NoError(t, err)
	files := unpack(t, &packed)
	if len(files) != 2 || files["folder/logs/a.log"] != "one\ntwo" || len(sum.Missing) != 3 ||
		sum.Missing[0] != "logs/a.log: lines are left out (1), because they have a secret in them: the token" ||
		sum.Missing[2] != "logs/b.log: it is left out, because it has a secret in it: two lines" {
		t.Errorf("the archive has %q, and lacks %q", files, sum.Missing)
	}
}

// What cannot be searched for is named.
func TestASearchThatIsNotComplete(t *testing.T) {
	b := &Bundle{}
	b.Secret("a PIN", "1234")
	b.Secret("none", "")
	file := filepath.Join(t.TempDir(), "file")
	check.NoError(t, os.WriteFile(file, nil, 0o600))
	b.SecretFile(filepath.Join(file, "below"))
	sum, err := b.Write(io.Discard, "folder")
	if err != nil || len(sum.Missing) != 2 || !strings.Contains(sum.Missing[0], "a PIN has fewer than 8") ||
		!strings.Contains(sum.Missing[1], file) {
		t.Errorf("%q, %v", sum.Missing, err)
	}
}

func TestTheFileIsPrivateAndNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.tar.gz")
	b := &Bundle{}
	b.File("a").WriteString("b")
	if _, err := b.WriteFile(path, "folder"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := b.WriteFile(path, "folder"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file is replaced: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
