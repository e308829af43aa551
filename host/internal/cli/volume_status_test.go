package cli

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// A person whose terminal is full of volumes is told how to list fewer; a file gets the list alone.
func TestManyVolumes(t *testing.T) {
	f := startFake(t)
	for n := range manyVolumes {
		id := fmt.Sprintf("v%d", n)
		f.volumes[id] = &hostv1.Volume{Spec: &hostv1.VolumeSpec{Id: id}}
	}
	keyboard, terminal := clitest.Terminal(t)
	seen := make(chan string)
	go func() {
		defer close(seen)
		for lines := bufio.NewScanner(keyboard); lines.Scan(); {
			if text := lines.Text(); strings.Contains(text, "list fewer") || strings.Contains(text, "in all") || strings.Contains(text, "the end") {
				seen <- text
			}
		}
	}()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	check.NoError(t, err)
	defer file.Close()
	run := func(out *os.File, flags ...string) {
		args := append([]string{"-address", "unix://" + f.socket, "volume", "status"}, flags...)
		if code := Main(Options{Args: args, Stdout: out, Stderr: terminal}); code != ExitOK {
			t.Errorf("exit code %d", code)
		}
		fmt.Fprintln(terminal, "the end")
	}
	go run(file)
	if text := <-seen; !strings.Contains(text, "the end") {
		t.Errorf("with a file: %s", text)
	}
	go run(terminal)
	if text := <-seen; !strings.Contains(text, "1000 volumes; -search") {
		t.Errorf("on a terminal: %s", text)
	}
	<-seen
	go run(file, "-per-page", "30", "-page", "2")
	if text := <-seen; !strings.Contains(text, "page 2 of 34: 1000 volumes in all") {
		t.Errorf("with pages: %s", text)
	}
	<-seen
}
