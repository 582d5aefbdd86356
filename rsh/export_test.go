package rsh

// AnswerMessage is for the tests of package rsh_test.
var AnswerMessage = answerMessage
