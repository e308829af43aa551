package mountuse

import "testing"

// All that wait share a reading, and none gets one that began before it asked.
func TestSharedBeginsAfterTheCall(t *testing.T) {
	var state, reads int
	began, proceed := make(chan struct{}), make(chan struct{})
	s := shared[int]{read: func() (int, error) {
		reads++
		seen := state
		began <- struct{}{}
		<-proceed
		return seen, nil
	}}
	var last *reading[int]
	start := func() <-chan int {
		got := make(chan int, 1)
		r := s.ask()
		last = r
		go func() {
			value, err := s.wait(r)
			if err != nil {
				t.Error(err)
			}
			got <- value
		}()
		return got
	}
	first := start()
	<-began
	state = 1 // the first reading has not seen it
	if s.ask() == last {
		close(proceed)
		t.Fatal("a call gets a reading that has begun already")
	}
	second, third := start(), start()
	proceed <- struct{}{}
	<-began
	state = 2
	fourth := start()
	proceed <- struct{}{}
	<-began
	proceed <- struct{}{}
	for n, got := range []<-chan int{first, second, third, fourth} {
		if want := []int{0, 1, 1, 2}[n]; <-got != want {
			t.Errorf("call %d did not get what was there after it, %d", n+1, want)
		}
	}
	if reads != 3 {
		t.Errorf("%d readings, want 3", reads)
	}
}
