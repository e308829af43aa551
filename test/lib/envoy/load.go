package envoy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// Load makes requests, each with a connection of its own, until End.
type Load struct {
	// End ends the requests. It may be called again.
	End func()

	mu      sync.Mutex
	answers map[string]int
	failed  []error
}

// atMost bounds the requests at once: on a machine that is too busy there are fewer, since an Envoy refuses the 1025th.
const atMost = 200

// StartLoad makes requests to an address, IP:PORT or the path of a socket, at so many a second.
func StartLoad(network, address string, perSecond int) *Load {
	return StartLoadBy((&net.Dialer{}).DialContext, network, address, perSecond)
}

// Dial makes a connection.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// StartLoadBy is StartLoad from where dial connects, such as another host.
func StartLoadBy(dial Dial, network, address string, perSecond int) *Load {
	l := &Load{answers: map[string]int{}}
	client := clientBy(dial, network, address)
	stop, atOnce := make(chan struct{}), make(chan struct{}, atMost)
	var all sync.WaitGroup
	all.Go(func() {
		pace := time.NewTicker(time.Second / time.Duration(perSecond))
		defer pace.Stop()
		for {
			select {
			case <-stop:
				return
			case <-pace.C:
			}
			select {
			case atOnce <- struct{}{}:
				all.Go(func() { l.request(client); <-atOnce })
			default:
			}
		}
	})
	l.End = sync.OnceFunc(func() { close(stop); all.Wait() })
	return l
}

func (l *Load) request(client *http.Client) {
	answer, err := get(client, "/")
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed = append(l.failed, err)
		return
	}
	l.answers[answer]++
}

// clientOf returns a client that reaches nothing but an address.
func clientOf(network, address string) *http.Client {
	return clientBy((&net.Dialer{}).DialContext, network, address)
}

func clientBy(dial Dial, network, address string) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, network, address) },
	}}
}

func get(client *http.Client, path string) (answer string, err error) {
	resp, err := client.Get("http://envoy" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

// Answers counts each answer.
func (l *Load) Answers() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.answers)
}

// Failed are the errors of the requests that had no answer.
func (l *Load) Failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}
