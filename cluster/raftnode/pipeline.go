package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// pipeline ends when the other server has said no. Raft's leader takes nothing more out of it then, but it may just
// be about to put one more request into it, and would wait for ever for room: its
// replication to that server would stand still, and its shutdown with it.
type pipeline struct {
	raft.AppendPipeline
	answered chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
}

// AppendEntriesPipeline is that of raft's transport, but for its end.
func (t *competing) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	under, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: under, answered: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go p.pass()
	return p, nil
}

// Consumer gives what was answered.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answered }

// Close may be called again.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// pass passes answers on, up to the first no.
func (p *pipeline) pass() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			select {
			case p.answered <- f:
			case <-p.closed:
				return
			}
			if !f.Response().Success { // also where there was no answer
				_ = p.Close() // it has no error
				return
			}
		case <-p.closed:
			return
		}
	}
}
