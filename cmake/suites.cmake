# Lists the suites of the test program PROGRAM for ctest: cmake -DPROGRAM=... -DOUTPUT=... -P suites.cmake
# A suite is one test, or several if it has more than 60 tests of its own: GoogleTest's shards.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "#[^\n]*" "" listed "${listed}")  # values of parameters
string(REGEX MATCHALL "\n[^ \n]+\\.[^\n]*(\n  [^\n]*)*" suites "\n${listed}")
set(text "")
foreach(suite IN LISTS suites)
  string(STRIP "${suite}" suite)
  string(REGEX MATCH "^[^ \n]+\\." name "${suite}")
  string(REGEX MATCHALL "\n  " tests "${suite}")
  list(LENGTH tests count)
  math(EXPR shards "(${count} + 59) / 60")
  if(shards EQUAL 1)
    string(APPEND text "add_test([=[${name}*]=] [=[${PROGRAM}]=] [=[--gtest_filter=${name}*]=])\n")
    continue()
  endif()
  foreach(shard RANGE 1 ${shards})
    math(EXPR index "${shard} - 1")
    set(test "[=[${name}* ${shard} of ${shards}]=]")
    string(APPEND text "add_test(${test} [=[${PROGRAM}]=] [=[--gtest_filter=${name}*]=])\n"
                       "set_tests_properties(${test} PROPERTIES ENVIRONMENT "
                       "\"GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}\")\n")
  endforeach()
endforeach()
file(WRITE ${OUTPUT} "${text}")
