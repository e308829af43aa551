package printable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/pannier/pannier/internal/printable"
)

func TestString(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"größe 日本 ✓ 🐧 \"'\\":               "größe 日本 ✓ 🐧 \"'\\",
		"a\nb\r\tc":                        `a\nb\r\tc`,
		"\x1b]0;title\x07\x00\x7f":         `\u001b]0;title\u0007\u0000\u007f`,
		"\u009b2J\u0085":                   `\u009b2J\u0085`,
		"user\u202enimda\u2066\u200f":      `user\u202enimda\u2066\u200f`,
		"next\u2028line\u2029\u200b":       `next\u2028line\u2029\u200b`,
		"tag \U000e0041":                   `tag \udb40\udc41`,
		"half \xc3 and \x9b, \xed\xa0\x80": `half \xc3 and \x9b, \xed\xa0\x80`,
		"\ufffd was something":             "\ufffd was something",
		`again \u001b`:                     `again \u001b`,
	} {
		if got := printable.String(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A writer's lines stay lines, whatever is in them.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := printable.Writer(&out)
	for _, p := range []string{"one\n", "two\nthree\n", "\x1b[2J", "\n"} {
		if n, err := io.WriteString(w, p); n != len(p) || err != nil {
			t.Errorf("wrote %d bytes of %q: %v", n, p, err)
		}
	}
	if want := "one\ntwo\\nthree\n\\u001b[2J\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	broken := errors.New("broken")
	w = printable.Writer(writerFunc(func([]byte) (int, error) { return 0, broken }))
	if n, err := io.WriteString(w, "x"); n != 0 || !errors.Is(err, broken) {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func FuzzString(f *testing.F) {
	f.Add("a\x1b\n\u202e\xff\U000e0041")
	f.Fuzz(func(t *testing.T, text string) {
		got := printable.String(text)
		if i := strings.IndexFunc(got, func(r rune) bool {
			return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
		}); i >= 0 {
			t.Errorf("%q: %q is left", text, got[i:])
		}
		if again := printable.String(got); again != got {
			t.Errorf("%q: escaped twice %q, once %q", text, again, got)
		}
		before, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Skip(err)
		}
		var was, is map[string]string
		if err := json.Unmarshal(before, &was); err != nil {
			t.Fatal(err)
		}
		err = json.Unmarshal([]byte(printable.String(string(before))), &is)
		if err != nil || fmt.Sprint(was) != fmt.Sprint(is) {
			t.Errorf("JSON of %q: %v, %v", text, is, err)
		}
	})
}

func TestArgument(t *testing.T) {
	for text, want := range map[string]string{
		"": "''", "data": "data", "a/b:c@d,e+f-._9Z": "a/b:c@d,e+f-._9Z", "data[0]": "'data[0]'", "$(x)": "'$(x)'", "~a": "'~a'",
		"it's": `'it'\''s'`, "a b": "'a b'", "a=b": "'a=b'", "ä": "'ä'",
	} {
		got := printable.Argument(text)
		if got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
		if out, err := exec.Command("/bin/sh", "-c", "printf %s "+got).Output(); err != nil || string(out) != text {
			t.Errorf("a shell reads %s as %q (%v), want %q", got, out, err, text)
		}
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{printable.Count(0, "claim"), "0 claims"},
		{printable.Count(int64(1), "claim"), "1 claim"},
		{printable.Count(int32(2), "more server"), "2 more servers"},
		{printable.Count(uint64(1), "process"), "1 process"},
		{printable.Count(3, "process"), "3 processes"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
