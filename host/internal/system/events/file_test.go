package events

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// keep runs Keep; the function that it returns ends it, as an agent that stops.
func keep(t *testing.T, b *Bus, path string, failed func(error)) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { b.Keep(ctx, path, failed) })
	end = func() { cancel(); done.Wait() }
	t.Cleanup(end)
	return end
}

func kept(b *Bus) (list []uint64) {
	for _, e := range b.Recent(1000) {
		list = append(list, e.Seq)
	}
	return list
}

func never(t *testing.T) func(error) {
	return func(err error) { t.Error(err) }
}

func TestEventsOutliveTheirProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	first := New(10)
	if err := first.Restore(path); err != nil {
		t.Fatal(err)
	}
	end := keep(t, first, path, never(t))
	publish(first, 3)
	first.Publish(Event{Topic: TopicPlugin, Type: "swapped", Subject: "p", Details: map[string]string{"n": "1"}})
	end()
	second := New(10)
	if err := second.Restore(path); err != nil {
		t.Fatal(err)
	}
	got := second.Recent(1000)
	if len(got) != 4 || got[3].Details["n"] != "1" || !got[3].Time.Equal(first.Recent(1)[0].Time) {
		t.Fatalf("%+v", got)
	}
	publish(second, 1)
	if got := kept(second); !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("%v", got)
	}
}

func TestTheFileStaysShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	b := New(10)
	end := keep(t, b, path, never(t))
	for range 100 {
		publish(b, 1)
		take(t, b, 1, 1)
	}
	end()
	if info, err := os.Stat(path); err != nil || info.Size() > 40*200 {
		t.Errorf("%v, %v", info, err)
	}
	next := New(10)
	if err := next.Restore(path); err != nil {
		t.Fatal(err)
	}
	if got, want := kept(next), kept(b); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestADamagedFile(t *testing.T) {
	line := func(seq string) string { return `{"Seq":` + seq + `,"Topic":"agent","Type":"started"}` + "\n" }
	for name, test := range map[string]struct {
		text string
		want []uint64
	}{
		"empty":       {"", nil},
		"half a line": {line("1") + line("2") + `{"Seq":3,"To`, []uint64{1, 2}},
		"garbage":     {line("1") + "\x00\x00\n" + line("2"), []uint64{1, 2}},
		"a gap":       {line("1") + line("2") + line("7") + line("8"), []uint64{7, 8}},
		"twice":       {line("1") + line("2") + line("2") + line("1"), []uint64{1, 2}},
	} {
		path := filepath.Join(t.TempDir(), "events.jsonl")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := New(10)
		if err := b.Restore(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := kept(b); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		end := keep(t, b, path, never(t))
		publish(b, 1)
		end()
		again := New(10)
		if err := again.Restore(path); err != nil || !slices.Equal(kept(again), kept(b)) {
			t.Errorf("%s: %v, %v after %v", name, err, kept(again), kept(b))
		}
	}
}

// While the file cannot be written nothing is held up, and later all is there.
func TestAFileThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "events.jsonl")
	b := New(10)
	failed := make(chan error, 10)
	end := keep(t, b, path, func(err error) { failed <- err })
	publish(b, 1)
	if err := <-failed; !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	publish(b, 1)
	end()
	next := New(10)
	if err := next.Restore(path); err != nil || !slices.Equal(kept(next), []uint64{1, 2}) {
		t.Errorf("%v, %v", kept(next), err)
	}
}
