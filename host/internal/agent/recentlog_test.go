package agent

import (
	"bytes"
	"fmt"
	"testing"
)

func TestRecentLog(t *testing.T) {
	l := &recentLog{}
	if _, err := l.Write([]byte("first\n")); err != nil || string(l.lines()) != "first\n" {
		t.Errorf("%q, %v", l.lines(), err)
	}
	var last string
	for i := range 3 * recentLogSize / 10 {
		last = fmt.Sprintf("line %8d\n", i)
		if _, err := l.Write([]byte(last)); err != nil {
			t.Fatal(err)
		}
		if len(l.text) > 2*recentLogSize {
			t.Fatalf("it keeps %d bytes", len(l.text))
		}
	}
	got := l.lines()
	if !bytes.HasPrefix(got, []byte("line ")) || !bytes.HasSuffix(got, []byte(last)) ||
		len(got) > recentLogSize || len(got) < recentLogSize-20 {
		t.Errorf("%d bytes, from %q to %q", len(got), got[:20], got[len(got)-20:])
	}
}
