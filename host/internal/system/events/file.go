package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/pannier/pannier/internal/atomicfile"
)

// Restore fills a Bus that has published nothing with the events that Keep has written to the file, and goes on with
// their numbers. Half a line at the end, of a process that was killed, is left out.
func (b *Bus) Restore(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the events of before: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range bytes.Lines(text) {
		e := Event{}
		if json.Unmarshal(line, &e) != nil || e.Seq <= b.last {
			continue
		}
		if e.Seq != b.last+1 { // some between were not written: a ring has no gaps
			clear(b.ring)
			b.first = e.Seq
		}
		b.ring[e.Seq%uint64(len(b.ring))] = e
		b.last = e.Seq
	}
	return nil
}

// Keep writes the events to a file until ctx has ended and all are written. It is a subscriber: a disk that hangs
// delays no publisher. What was published when the process is killed is in the file but for the last moment; a loss of
// power may cost the last seconds. While the file cannot be written, failed gets each error, and the first event after
// that writes all that the Bus still has.
func (b *Bus) Keep(ctx context.Context, path string, failed func(error)) {
	b.mu.Lock()
	k := keeper{bus: b, path: path, next: b.startLocked(len(b.ring))}
	b.mu.Unlock()
	defer k.close()
	for {
		e, added, ok := b.at(k.next)
		if ok {
			if err := k.write(e); err != nil {
				failed(fmt.Errorf("keep the events: %w", err))
			}
			continue
		}
		select {
		case <-added:
		case <-ctx.Done():
			if _, _, more := b.at(k.next); !more {
				return
			}
		}
	}
}

// keeper appends to a file. When the file has become long, or was not written, it is rewritten.
type keeper struct {
	bus   *Bus
	path  string
	next  uint64 // seq of the next event
	file  *os.File
	lines int
}

func (k *keeper) write(e Event) error {
	if k.file == nil || k.lines >= 4*len(k.bus.ring) {
		return k.anew()
	}
	k.next = e.Seq + 1
	if err := json.NewEncoder(k.file).Encode(e); err != nil {
		k.close()
		return err
	}
	k.lines++
	return nil
}

// anew rewrites the file with all events of the bus.
func (k *keeper) anew() error {
	k.close()
	var text bytes.Buffer
	all := k.bus.Recent(len(k.bus.ring))
	for _, e := range all {
		if err := json.NewEncoder(&text).Encode(e); err != nil {
			return err
		}
	}
	k.next, k.lines = all[len(all)-1].Seq+1, len(all)
	if err := atomicfile.WriteFile(k.path, text.Bytes()); err != nil {
		return err
	}
	file, err := os.OpenFile(k.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	k.file = file
	return nil
}

func (k *keeper) close() {
	if k.file != nil {
		_ = k.file.Close() // nothing is buffered
		k.file = nil
	}
}
