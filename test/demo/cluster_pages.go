package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
)

// pagesSocket is where the plugin web of a host listens, whose network a browser does not reach.
const pagesSocket = "web.sock"

// pagesToken is the file with the token of the plugin web.
const pagesToken = "web.token"

// pagesBlock lets a host show pages.
const pagesBlock = `
plugin "web" {
  config {
    actions = true
  }
  listen "http" {
    address = "unix://%s"
  }
  api {
    token_file = %q
  }
}
`

// pages makes the pages reachable at an address of this machine, and says which.
func (s *clusterTeller) pages() {
	s.do(func() error {
		listener, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(s.ctx)
		var passing sync.WaitGroup
		s.closePages = func() {
			stop()
			_ = listener.Close()
			passing.Wait()
		}
		passing.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return // closePages
				}
				passing.Go(func() { s.pass(ctx, conn) })
			}
		})
		fmt.Printf("  (the pages of %s, in a browser, with the token of %s: http://%s)\n", s.pagesOf,
			s.h.path(filepath.Join(configOf(s.names[0]), "management.token")), listener.Addr())
		return nil
	})
}

// pass connects a browser with the pages, until one of them or ctx ends.
func (s *clusterTeller) pass(ctx context.Context, browser net.Conn) {
	defer browser.Close()
	pages, err := (&net.Dialer{}).DialContext(ctx, "unix", s.h.path(pagesSocket))
	if err != nil {
		return // the host is not up
	}
	end := func() {
		_ = browser.Close()
		_ = pages.Close()
	}
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{browser: pages, pages: browser} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			end()
		})
	}
	both.Wait()
}

// keep waits for an interrupt.
func (s *clusterTeller) keep() {
	if s.err == nil {
		s.say("All of this stays until an interrupt (Ctrl-C).")
		<-s.ctx.Done()
	}
}
