# Installs headers, libraries, the program `ashlar` and the package files that make find_package(ashlar) work.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ashlar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  PATTERN backend EXCLUDE)
foreach(leaf cuda uring ucx s3 redis nats zmq http)
  if(TARGET ashlar_${leaf})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ashlar/backend/${leaf}
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ashlar/backend)
  endif()
endforeach()
if(TARGET ashlar_program)
  install(TARGETS ashlar_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  if(TARGET tiny_server) # what `ashlar run` starts
    install(TARGETS tiny_server RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/ashlar COMPONENT program)
  endif()
endif()
if(TARGET ashlar_shell_files)
  install(DIRECTORY ${ASHLAR_SHELL_FILES}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
  install(FILES ${ASHLAR_SHELL_FILES}/ashlar.bash COMPONENT program RENAME ashlar
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${ASHLAR_SHELL_FILES}/_ashlar COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
  install(FILES ${ASHLAR_SHELL_FILES}/ashlar.fish COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  include(ashlar_package)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/c/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Only an install knows its prefix, so the file finds it from where it lies.
file(RELATIVE_PATH to_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
set(ASHLAR_PC_PREFIX "\${pcfiledir}/${to_prefix}")
set(ASHLAR_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
set(ASHLAR_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")  # then the folders do not move with the prefix
  set(ASHLAR_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  set(ASHLAR_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(ASHLAR_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/c/ashlar_c.pc.in ${CMAKE_BINARY_DIR}/ashlar_c.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ashlar_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(ASHLAR_INSTALLED ashlar ashlar_base ashlar_memory ashlar_routing ashlar_client ashlar_service
  ashlar_replay ashlar_testing ashlar_c)
foreach(leaf uring ucx s3 redis nats zmq http)
  if(TARGET ashlar_${leaf})
    list(APPEND ASHLAR_INSTALLED ashlar_${leaf})
  endif()
endforeach()
install(TARGETS ${ASHLAR_INSTALLED} EXPORT ashlarTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ashlarTargets NAMESPACE ashlar:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
if(TARGET ashlar_cuda)
  install(TARGETS ashlar_cuda EXPORT ashlarCudaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ashlarCudaTargets NAMESPACE ashlar:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ashlarConfig.cmake.in
  ${CMAKE_BINARY_DIR}/ashlarConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ashlarConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ashlarConfig.cmake ${CMAKE_BINARY_DIR}/ashlarConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
