package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestTableAlignsByRunesAndColours(t *testing.T) {
	table := NewTable("NAME", "STATE")
	table.Row("größe", Cell{"ok", Green})
	table.Row("", "x")
	want := "\x1b[1mNAME\x1b[0m   \x1b[1mSTATE\x1b[0m\ngröße  \x1b[32mok\x1b[0m\n-      x\n"
	if got := table.text(true); got != want {
		t.Fatalf("%q", got)
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain ü":       "plain ü",
		"a\nb\tc":       "a b c",
		"\x1b]0;x\x07":  `\u001b]0;x\u0007`,
		"a\u202eb\xffc": `a\u202eb\xffc`,
		"\u009b2J":      `\u009b2J`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 4*time.Minute +
			59*time.Second: "4m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// On a terminal, the lines of running steps are redrawn and those of ended steps stay.
func TestLiveProgress(t *testing.T) {
	var out bytes.Buffer
	p := &progress{w: &out, live: true, stop: func() {}}
	send := func(name, state, failure string) {
		p.step(&hostv1.Step{
			Name: name, Volume: "v", State: state, Error: failure, Took: durationpb.New(time.Second),
			Attempt: 2,
		})
	}
	send("stage", "running", "")
	send("publish", "running", "")
	send("stage", "done", "")
	p.note("a note")
	send("publish", "failed", "no\x1bway")
	p.explain(errors.New("the start failed: no\x1bway")) // which has the step's error
	p.close()
	p.close()
	text := out.String()
	for _, want := range []string{
		"stage v ... done 1s (try 2)\n", "\x1b[2A\x1b[J", "a note\n", "publish v ... failed 1s (try 2)\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if strings.Count(text, "done") != 1 || strings.Count(text, "failed") != 1 {
		t.Errorf("an ended step was drawn again: %q", text)
	}
	send("publish", "failed", "no\x1bway")
	p.explain(errors.New("the start failed"))
	if want := "publish v ... failed 1s (try 2): no\\u001bway\n"; strings.Count(out.String(), want) != 1 {
		t.Errorf("an error that the command's has not is missing: %q", out.String())
	}
}

// A text of a plugin, a driver or another tenant controls no terminal, in whatever format it is printed.
func TestNoTextControlsATerminal(t *testing.T) {
	evil := "ok\n2026-01-01 00:00:00  agent  up\x1b[2J\x7f\u009b2J\u202e"
	for _, format := range []string{formatTable, formatJSON} {
		var out bytes.Buffer
		p := &Printer{Out: &out, Err: &out, format: format}
		check.NoError(t, p.showEvent(&hostv1.EventsResponse{Event: &hostv1.Event{
			Topic: "driver", Type: evil, Subject: evil, Message: evil, Details: map[string]string{evil: evil},
		}}))
		check.NoError(t, p.showLogLine(&hostv1.PluginLogResponse{Line: evil}))
		p.Note("error: %s", evil)
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != 3 {
			t.Errorf("%s: 3 texts became %d lines", format, len(lines))
		}
		for _, line := range lines {
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: a terminal would obey %q", format, line)
			}
		}
	}
	for _, format := range []func(place) (string, error){dockerPlace, systemdPlace} {
		text, err := format(place{from: "/a\x1bc\rb", to: "/b"})
		if err == nil {
			t.Errorf("a terminal would obey %q", text)
		}
	}
}

func TestFit(t *testing.T) {
	for most, want := range map[int]string{
		80: "ID                     DRIVER  MESSAGE                   AGE\na-volume-of-long-name  local   the node does not answer  3h\n",
		50: "ID                     DRIVER  MESSAGE         AGE\na-volume-of-long-name  local   the node does…  3h\n",
		40: "ID                     DRIVER\na-volume-of-long-name  local\n",
		9:  "ID\na-volume-of-long-name\n",
	} {
		table := NewTable("ID", "DRIVER", "MESSAGE", "AGE")
		table.Row("a-volume-of-long-name", "local", "the node does not answer", "3h")
		table.fit(most)
		if got := table.text(false); got != want {
			t.Errorf("%d characters:\n%swant:\n%s", most, got, want)
		}
	}
}

// A command that ends a process names its host, as it reaches no other. Pannier's own reach every node.
func TestCommandsNameTheirHost(t *testing.T) {
	for command, want := range map[string]string{
		"kill 7": "on n2: kill 7", "docker stop web": "on n2: docker stop web", "pannier workload stop w": "pannier workload stop w",
	} {
		explained := &hostv1.ExplainedClaim{Claim: &hostv1.Claim{Node: "n2"}, Command: command}
		if got := commandOf(explained); got != want {
			t.Errorf("of a claim: %q, not %q", got, want)
		}
		if got := releaseText(&hostv1.Release{Command: command}, "n2"); !strings.HasSuffix(got, "; to end that: "+want) {
			t.Errorf("of a release: %q does not end with %q", got, want)
		}
	}
}
