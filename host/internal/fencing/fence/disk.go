package fence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/printable"
)

// The fence must act while the disk of the data directory hangs: a write to it may never return, and cannot be
// cancelled. So the log, the state and the reports are each written by a goroutine that nothing else waits for.

// saveTimeout is how long an agent waits for its state to be saved. It is shorter than answerTimeout: a fence that does
// not answer is killed, and does not end while it waits for a disk.
const saveTimeout = time.Second

// saver writes the newest state to the disk.
type saver struct {
	dir    string
	next   chan saving // holds the newest state unless it is being saved
	saving sync.WaitGroup
}

type saving struct {
	state  State
	result chan error
}

func newSaver(dir string) *saver {
	s := &saver{dir: dir, next: make(chan saving, 1)}
	s.saving.Go(func() {
		for n := range s.next {
			n.result <- saveState(s.dir, n.state)
		}
	})
	return s
}

// save begins to save a state. It must not be called concurrently.
func (s *saver) save(state State) <-chan error {
	select {
	case <-s.next: // an older one
	default:
	}
	result := make(chan error, 1)
	s.next <- saving{state, result}
	return result
}

// close waits until the last state is saved.
func (s *saver) close() {
	close(s.next)
	s.saving.Wait()
}

func waitSaved(saved <-chan error) error {
	select {
	case err := <-saved:
		return err
	case <-time.After(saveTimeout):
		return fmt.Errorf("the disk of the data directory has not written it within %v", saveTimeout)
	}
}

// stateFile is where the next process of the fence finds its state, in the same boot.
func stateFile() string { return statePrefix + process.BootID() + stateSuffix }

const statePrefix, stateSuffix = "state-", ".json"

// saveState does not sync to disk: after a loss of power nothing is mounted anyway. A partly written file is then
// another boot's, and ignored, whatever it contains.
func saveState(dir string, s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, "state.new")
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, stateFile()))
}

// loadState reads the state that the previous fence of this boot has saved, and removes the state of other boots.
func loadState(dir string) (s State, err error) {
	path := filepath.Join(dir, stateFile())
	all, _ := filepath.Glob(filepath.Join(dir, statePrefix+"*"+stateSuffix))
	for _, old := range all {
		if old != path {
			_ = os.Remove(old) // it is in nobody's way
		}
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return State{}, fmt.Errorf("read the state of the previous fence: %s: %w", path, err)
	}
	return s, nil
}

// logLines is how many lines of the log may wait for the disk. Further ones are dropped.
const logLines = 256

// logWriter is a writer that never waits for its output.
type logWriter struct {
	lines   chan []byte
	dropped atomic.Int64
	writing sync.WaitGroup
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{lines: make(chan []byte, logLines)}
	w.writing.Go(func() {
		for line := range w.lines {
			_, _ = out.Write(line) // there is nowhere else to report to
			if n := w.dropped.Swap(0); n > 0 {
				_, _ = fmt.Fprintf(out, "%s missing here: the log could not be written\n", printable.Count(n, "line"))
			}
		}
	})
	return w
}

// Write implements io.Writer.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// close waits until all lines are written.
func (w *logWriter) close() {
	close(w.lines)
	w.writing.Wait()
}
