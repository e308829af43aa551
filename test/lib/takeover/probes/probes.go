// Package probes asks a program of test/lib/takeover for its answer, again and again, to find out whether a takeover
// costs a connection.
package probes

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// patience bounds one probe.
const patience = time.Minute

// Probe returns the answer of the program that has written its address into a file.
func Probe(file string) (string, error) {
	address, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	conn, err := net.DialTimeout("tcp", string(address), patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = errors.New("an empty answer")
	}
	return string(answer), err
}

// Prober makes one probe after the other until End.
type Prober struct {
	// End ends the probes. It may be called again.
	End func()

	mu      sync.Mutex
	answers map[string]int
	failed  []error
}

// Start makes probes with a pause between them.
func Start(file string, pause time.Duration) *Prober {
	p := &Prober{answers: map[string]int{}}
	stop := make(chan struct{})
	var probing sync.WaitGroup
	probing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			answer, err := Probe(file)
			p.mu.Lock()
			if err != nil {
				p.failed = append(p.failed, err)
			} else {
				p.answers[answer]++
			}
			p.mu.Unlock()
		}
	})
	p.End = sync.OnceFunc(func() { close(stop); probing.Wait() })
	return p
}

// Answered counts the answers that begin with a text.
func (p *Prober) Answered(prefix string) (n int) {
	for answer, times := range p.Answers() {
		if strings.HasPrefix(answer, prefix) {
			n += times
		}
	}
	return n
}

// Answers counts each answer.
func (p *Prober) Answers() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.answers)
}

// Failed are the errors of the probes that had no answer.
func (p *Prober) Failed() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}
