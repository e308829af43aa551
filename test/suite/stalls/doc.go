// Package stalls stalls, fills, damages, cuts off and removes what an agent relies on, one thing after the other, and
// checks that the agent goes on: it answers meanwhile, and afterwards works as before.
package stalls
